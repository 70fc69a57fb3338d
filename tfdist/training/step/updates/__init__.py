"""The update of a step, from a shard's gradients to the weights.

stages.py         the chain of stages: flag non-finite, sum over replicas, unscale, skip, clip, apply
all_reduce.py     the sum over replicas
tables.py         gradients of tables, such as an embedding's
fused_updates.py  the updates of Keras' optimizers in fewer kernels
optimizer_branches.py   branches in Keras' optimizers, taken once for all replicas
work_sharing.py   costly parts of an update, divided between the replicas
"""
