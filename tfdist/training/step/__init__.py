"""One training step and one evaluation step on a replica, and the execution that runs many steps in one call.

Read train_step.py first, then gradients.py, which has the only all-reduce of a step, then multi_step.py.
"""
