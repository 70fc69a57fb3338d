"""`tfdist.connect`, `fit`, `evaluate` and `predict`: for scripts that compile a Keras model themselves.

    api.py                  the four functions
    setup.py                a Run from a compiled model
    compiled_objective.py   Keras' losses and metrics over the shards of a global batch
    adapters/               arrays, tf.data, PyDataset and generators as shards

Imports training and the wings below it. Only `tfdist/__init__.py` imports it.
"""
