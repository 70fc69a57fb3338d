"""Environment variables of launchers -> `WorkerSpec`: rank, world size, addresses, GPUs.

`environment.resolve` chooses the launcher; each module in launchers/ reads the variables of one launcher, or of similar
ones, and if needed PBS_NODEFILE or /proc. Nothing is changed. Only cluster_resolver.py imports TensorFlow.
"""
