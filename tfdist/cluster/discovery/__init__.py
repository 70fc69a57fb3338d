"""Environment variables of launchers -> `WorkerSpec`: rank, world size, addresses, GPUs.

`environment.resolve` chooses the launcher; the modules of launchers/, which are imported only if there are variables of
theirs, each read one. Pure functions of the environment. Without TensorFlow, but for cluster_resolver.py.
"""
