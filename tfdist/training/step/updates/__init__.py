"""The update of a step, from a shard's gradients to the weights; read stages.py first."""
