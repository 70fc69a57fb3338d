"""What a step does with the layers of a model: finds them and their moving statistics, normalises over replicas, and
computes convolutions on CPUs by products of matrices.

model_layers.py finds; normalization.py and convolutions.py replace methods of the objects.
"""
