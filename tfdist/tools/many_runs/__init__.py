"""Commands about many runs: `tfdist runs`, `compare` and `cost`. They read the files of runs, and need no TensorFlow.

run_state.py reads one workdir, find.py finds the workdirs below directories and in the queue of Slurm.
"""
