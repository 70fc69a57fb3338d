"""`train.shard_optimizer`: each replica holds and updates its part of the optimizer's slots.

sharded_optimizer.py  which optimizers; puts the run together; the end of an update
parts.py              which numbers each replica holds; slots as checkpoints have them
"""
