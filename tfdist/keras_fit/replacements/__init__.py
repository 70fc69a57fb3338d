"""What a run replaces in Keras; `restored.py` of `keras_fit` does so and restores it.

shard_losses.py        losses as a shard's part of the loss of the global batch
optimizer_branches.py  the branches of optimizers that accumulate gradients or overwrite weights, once for all replicas
"""
