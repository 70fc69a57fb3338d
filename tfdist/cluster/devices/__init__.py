"""The devices of a worker: GPUs of the host, and whether TensorFlow can use them.

host_gpus.py: GPUs, without TensorFlow; gpu_software.py: with it. machine.py: versions; onednn.py: the processor.
eager_context.py: what has no public name. gather.py: values of any dtype. replicas.py: what a step knows of its
replica.
"""
