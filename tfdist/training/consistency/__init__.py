"""Checks that replicas hold the same state and workers read the same examples; finds an example after an error."""
