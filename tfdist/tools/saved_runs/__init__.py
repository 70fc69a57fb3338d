"""Commands that use runs: plot, predict, inspect and export. `tfdist train runs/x` and `evaluate` are tfdist.main.

saved.py opens a workdir, weights.py its model at a checkpoint, examples.py the files to predict; outputs.py computes
the model's outputs on all replicas, and meaning.py turns them into classes and probabilities.
"""
