"""Commands that use runs: predict, inspect, export and verify. `tfdist train runs/x` and `evaluate` are tfdist.main.

saved.py opens a workdir; model.py has its model at a checkpoint and computes the outputs on all replicas; examples.py
reads the files to predict.
"""
