"""`tfdist.connect`, `fit`, `evaluate` and `predict`: for scripts that compile a Keras model themselves.

    connect.py              rendezvous of the workers; an error on one ends all
    api.py                  fit, evaluate, predict
    make_run.py, run_parts/ a Run from a compiled model; its config, its input
    own_step/, script/      models with a train_step of their own; `python -m tfdist.run`
    compiled_objective.py   Keras' losses and metrics of a compiled model; compiled_model.py
    whole_batch/            losses and metrics of the whole batch, from shards
    patches.py              what a run replaces in Keras, and restores
    callbacks.py            a CallbackRunner from Keras' `callbacks` and `verbose`, with Keras' bar
    adapters/               arrays, tf.data, PyDataset and generators as shards of global batches

Importing these modules changes nothing in Keras. Only `tfdist/__init__.py` and `run.py` import it.
"""
