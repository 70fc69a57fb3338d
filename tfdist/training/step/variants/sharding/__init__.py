"""`train.shard_optimizer`: each replica holds and updates its part of the optimizer's slots."""
