"""Environment variables of launchers -> `WorkerSpec`: rank, world size, addresses, GPUs.

`environment.resolve` chooses the launcher; slurm.py, mpi.py, pbs.py, tf_config.py, and the modules of launchers/, which
are imported only if theirs is found, each read one. Pure functions of the environment. Without TensorFlow, but for
cluster_resolver.py.
"""
