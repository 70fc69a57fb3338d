"""Environment variables of Slurm, MPI, PBS and TF_CONFIG -> `WorkerSpec`: rank, world size, addresses, GPUs.

`environment.resolve` chooses the launcher; slurm.py, mpi.py, pbs.py and tf_config.py each read one. Pure functions of
the environment. Without TensorFlow, but for cluster_resolver.py.
"""
