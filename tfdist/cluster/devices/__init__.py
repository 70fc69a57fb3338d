"""The devices of a worker: GPUs of the host, and whether TensorFlow can use them.

host_gpus.py: GPUs as the driver lists them; gpu_software.py: as TensorFlow does. machine.py: versions; onednn.py: the
choice of oneDNN. eager_context.py: settings without a public API. gather.py and bits.py: collectives of any dtype.
replicas.py: what a step knows of its replica.
"""
