"""Commands about many runs: `tfdist runs`, `compare`, `sweep`. They read the files of runs, without TensorFlow.

run_state.py finds runs, and reads a row of values for each. sweep.py trains many times: sweep_jobs.py
runs the trainings here, or as a job array.
"""
