"""One training step and one evaluation step on a replica, and the execution that runs many steps in one call.

Read train_step.py first, then updates/stages.py (from the gradients to the weights), then multi_step.py.
"""
