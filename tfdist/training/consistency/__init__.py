"""Checks of a run: all replicas hold the same state, all workers read the same examples, and values are finite."""
