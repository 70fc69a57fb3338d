"""Replacements of Keras' functions during a run, made and undone by `keras_fit/patches.py`.

shard_losses.py        losses as a shard's part of the loss of the global batch
optimizer_branches.py  the branches of optimizers that accumulate gradients or overwrite weights, once for all replicas
"""
