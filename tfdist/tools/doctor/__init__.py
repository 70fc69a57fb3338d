"""`tfdist doctor`: command.py runs the checks of checks.py on all workers; gpus.py measures the GPUs (`--gpu`)."""
