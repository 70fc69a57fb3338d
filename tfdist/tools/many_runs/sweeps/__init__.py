"""Sweeps: one command that trains a config or a script with many values of its fields or flags. No TensorFlow."""
