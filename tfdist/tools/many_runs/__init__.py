"""Commands about many runs: `tfdist runs`, `compare`, `cost`, `sweep`. They read the files of runs, without TensorFlow.

run_state.py reads one workdir; find.py finds the workdirs below directories, and asks Slurm which wait.
selection.py names, filters and sorts fields; differences.py is what differs; bills.py adds up the time of starts.
lr_range.py, range_script.py and sweeps/ train many times.
recipes.py is a table of the shipped configs; time_to_target.py predicts.
"""
