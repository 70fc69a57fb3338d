"""PyTorch's networks and DistributedDataParallel, for comparison. In the repository only: not part of the wheel."""
