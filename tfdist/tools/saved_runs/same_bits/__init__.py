"""`tfdist verify DIR` (verify.py): the hashes of a run's states again. Only replay.py imports TensorFlow."""
