"""Recomputation of activations in the backward pass: of layers that the config names, or of segments for a budget."""
