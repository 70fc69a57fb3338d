"""Data adapters: whatever `model.fit` takes, as one replica's shard of each global batch.

`make_adapter.make_data_adapter` chooses one. Data with random access is sharded before it is read. A tf.data pipeline
is sharded before its maps where that is possible (shard_before_map.py), else after batching.
"""
