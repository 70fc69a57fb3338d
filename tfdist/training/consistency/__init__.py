"""Checks of a run: all replicas hold the same state, all workers read the same examples, and values are finite.

replicas.py        compares the state of all replicas; what to do if they differ
start.py           compares the examples and the training state of all workers before the first step
hashing.py         the hash that is compared
audit.py           judges what audited steps have found; the run then ends or goes back
unsaved.py         refuses a step that writes variables that no checkpoint holds
replica_state.py   the state that is not compared: of which each replica has its own
nonfinite.py       what to do if a loss, a gradient or a variable is not finite
"""
