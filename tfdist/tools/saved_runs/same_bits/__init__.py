"""Tools on the hashes of a run's states. Only replay.py, stepwise.py and inside_step.py import TensorFlow.

chain.py             what metrics.jsonl says of a run: its starts, and the hash of its state after steps
why.py               `tfdist why A B`: where two runs begin to differ, and why
first_difference.py  trains both again side by side: replayed.py and, in a process of each, stepwise.py
inside_step.py       what one step computes: examples, outputs of layers, gradients, variables
causes.py            the recorded facts that differ, and which of them are the cause
code.py, sentences.py   the user's code as a run had it; words
verify.py            `tfdist verify DIR`: trains parts of a run again (replay.py); compares hashes and reports
"""
