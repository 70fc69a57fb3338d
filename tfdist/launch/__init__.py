"""Starts the workers of one machine and restarts them: `python -m tfdist.launch --workers=4 -- --config=...`.

__main__.py reads the command line and decides when to restart; processes.py runs child processes; local_workers.py
assigns ports and GPUs. Imports config and cluster, and no TensorFlow.
"""
