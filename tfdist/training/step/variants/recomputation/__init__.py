"""Recomputation of activations in the backward pass: of layers that the config or a scope names."""
