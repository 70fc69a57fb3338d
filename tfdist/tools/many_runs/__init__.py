"""Commands about many runs: `tfdist runs`, `compare`, `sweep`. They read the files of runs, without TensorFlow.

run_state.py reads one workdir; find.py finds the workdirs below directories, and asks Slurm which wait.
selection.py names, filters and sorts fields; differences.py is what differs.
sweeps/ trains many times.
"""
