"""Tools on the hashes of a run's states. Only replay.py imports TensorFlow.

chain.py   what metrics.jsonl says of a run: its starts, and the hash of its state after steps
why.py     `tfdist why A B`: the first report at which two runs differ, and what could be the cause
verify.py  `tfdist verify DIR`: trains parts of a run again and compares hashes; replay.py: does so
"""
