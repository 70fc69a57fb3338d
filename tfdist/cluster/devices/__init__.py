"""The devices of a worker: GPUs of the host, and whether TensorFlow can use them.

host_gpus.py: GPUs, without TensorFlow; gpu_software.py: with it. machine.py, onednn.py: the host. eager_context.py:
what has no public name. gather.py: what collectives cannot send. replicas.py: what a step knows of them.
"""
