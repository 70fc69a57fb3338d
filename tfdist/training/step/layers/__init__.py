"""The layers of a model in a step. model_layers.py finds them and their moving statistics; the others replace methods.

normalization.py normalises over replicas, remat_scopes.py recomputes, convolutions.py and fused.py are faster on CPUs.
"""
