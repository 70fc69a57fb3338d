"""Models that override `train_step` or `test_step`: each replica runs the user's step on its shard."""
