"""PyTorch's networks and DistributedDataParallel, for comparison."""
