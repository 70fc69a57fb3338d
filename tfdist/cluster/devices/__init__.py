"""The devices of a worker: GPUs of the host, whether TensorFlow can use them, and the precision that suits them.

host_gpus.py reads nvidia-smi and the driver's files, without TensorFlow; gpu_software.py finds out why TensorFlow lists
no GPU, and describes versions; precision.py chooses `train.precision = "auto"`; collective_dtypes.py converts what
collectives cannot send; initial_values.py gives new variables the chief's values; replicas.py is what a step knows of
the cluster.
"""
