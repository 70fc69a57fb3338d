"""Recomputation of activations in the backward pass: memory for time.

named_layers.py computes layers again that the config names; segments.py cuts a flat model into segments for a budget.
kept_sums.py keeps the sums over replicas of normalisation, which are not sent again.
"""
