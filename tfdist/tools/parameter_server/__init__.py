"""`python -m tfdist asynchronous`: training with parameter servers. Not the same run on any number of workers.

command.py has the flags, and starts all tasks on this machine, unless TF_CONFIG lists them. tasks.py reads
TF_CONFIG, connects the tasks and detects the loss of one. coordinator.py is the chief's training loop.
"""
