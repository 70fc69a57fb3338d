"""Commands about many runs: `tfdist runs`, `compare`, `cost`, `sweep`. They read the files of runs, without TensorFlow.

run_state.py reads one workdir; find.py finds the workdirs below directories, and asks Slurm which wait.
selection.py names, filters and sorts fields; differences.py is what differs; bills.py adds up the time of starts.
sweeps/ trains many times; trackers.py are callbacks for MLflow, W&B and trackio.
time_to_target.py predicts.
"""
