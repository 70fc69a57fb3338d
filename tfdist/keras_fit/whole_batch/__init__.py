"""Losses and metrics as on one device: of the whole batch, although each replica has a shard of it."""
