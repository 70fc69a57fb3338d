"""Data adapters: the data arguments of `model.fit` as one replica's shard of each global batch; read base.py first.

Data with random access is sharded before it is read; every worker reads all of other data, and keeps its rows.
"""
