"""`tfdist doctor`: command.py has its checks, a line each; gpus.py measures the GPUs (`--gpu`)."""
