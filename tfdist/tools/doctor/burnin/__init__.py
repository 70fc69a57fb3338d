"""`srun python -m tfdist burnin`: finds machines that compute wrongly or slowly before a long job.

command.py    the command: rounds on each device of each task, then the table of rank 0
device.py     one round on one device: a short training, and rates of arithmetic and memory; imports TensorFlow
exchange.py   the folder in which the tasks leave their results, and the link to the next task
judgement.py  which nodes are unlike the others
"""
