"""`tfdist.connect`, `fit`, `evaluate` and `predict`: for scripts that compile a Keras model themselves.

    connect.py              rendezvous of the workers; an error on one ends all
    api.py                  fit, evaluate, predict
    setup.py                a Run from a compiled model
    compiled_objective.py   Keras' losses and metrics over the shards of a global batch
    shard_losses.py         what `fit` replaces in Keras' losses, and restores
    callbacks.py            a CallbackRunner from Keras' `callbacks` and `verbose`
    adapters/               arrays, tf.data, PyDataset and generators as shards of global batches

Importing these modules changes nothing in Keras. Imports training and the wings below it; only `tfdist/__init__.py`
imports it.
"""
