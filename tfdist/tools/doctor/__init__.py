"""`tfdist doctor`: command.py runs the checks of checks.py on all workers; gpus.py measures the GPUs (`--gpu`).

burnin/ is `tfdist burnin`, which finds nodes that compute wrongly or slowly.
"""
