"""Data adapters: the data arguments of `model.fit` as one replica's shard of each global batch; read base.py first.

Data with random access is sharded before it is read; other data is read whole by every worker, which keeps its rows.
"""
