"""Losses and metrics as on one device: of the whole batch, although each replica has a shard of it.

rows.py           a replica's rows of the batch, and tensors with the rows of all replicas
per_example.py    which losses and metrics add up over shards; `tfdist.per_example`
shard_losses.py   losses: a shard's part of the global loss, or the user's code on the whole batch
batch_metrics.py  metrics that are no sums: updated on the whole batch by every replica
metric_state.py   the state of metrics in a checkpoint
shard_layers.py   layers that see the examples of one replica only
"""
