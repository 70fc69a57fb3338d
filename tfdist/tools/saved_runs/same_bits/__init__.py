"""Tools on the hashes of a run's states: `tfdist why A B` (why.py) and `tfdist verify DIR` (verify.py).

Only replay.py and inside_step.py import TensorFlow, and stepwise.py in the process that it serves.
"""
