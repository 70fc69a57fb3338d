"""Commands about many runs: `tfdist runs`, `compare`, `sweep`. They read the files of runs, without TensorFlow.

run_state.py finds runs, and reads a row of values for each. sweep.py trains with many values; sweep_jobs.py starts the
trainings here, or as a job array.
"""
