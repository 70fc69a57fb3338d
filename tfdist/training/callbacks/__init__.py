"""keras.callbacks on several workers: what they do to the model is the chief's word, broadcast to all workers."""
