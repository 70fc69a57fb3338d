"""Asynchronous training with parameter servers: a different algorithm, which keeps none of the three promises."""
