"""`srun python -m tfdist burnin`: finds machines that compute wrongly or slowly. Only device.py imports TensorFlow."""
