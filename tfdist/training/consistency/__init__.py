"""All replicas must hold the same state, and all workers must read the same examples.

replicas.py   compares the state of all replicas; what to do if they differ
start.py      compares the examples and the training state of all workers before the first step
hashing.py    the hash that is compared
unsaved.py    refuses a step that writes variables that no checkpoint holds
"""
