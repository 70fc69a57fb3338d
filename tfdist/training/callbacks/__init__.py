"""keras.callbacks on several workers: they run on all, and those that write files on the chief."""
