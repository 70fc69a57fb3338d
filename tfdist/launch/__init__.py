"""Starts the workers of one machine and restarts them: `python -m tfdist.launch --workers=4 -- --config=...`.

__main__.py decides when to restart; command_line.py parses the flags; processes.py runs child processes;
local_workers.py assigns ports and GPUs.
Imports config, cluster and checkpoint.directory, and no TensorFlow.
"""
