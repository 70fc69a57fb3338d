"""What a step does with the layers of a model: finds them and their moving statistics, and normalises over replicas.

model_layers.py finds; normalization.py replaces methods of the objects, and on CPUs convolutions.py and fused.py do.
"""
