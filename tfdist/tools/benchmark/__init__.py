"""tfdist beside the bare floor, the textbook loop, Keras `fit` and PyTorch DDP, in turns within one run."""
