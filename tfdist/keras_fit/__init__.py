"""`tfdist.connect`, `fit`, `evaluate` and `predict`: for scripts that compile a Keras model themselves.

    connect.py              rendezvous of the workers; an error on one ends all
    api.py                  fit, evaluate, predict
    make_run.py             a Run from a compiled model; its config, its input
    whole_batch/            the rule: a step sees the global batch, and layers run on a replica's rows
    own_step/               steps, Keras' own or a user's; training loops with tfdist.step
    script/                 what `python -m tfdist.run` changes in Keras and Python
    compiled_model.py       what `compile()` made of a model
    patches.py              what a run replaces in Keras, and restores
    callbacks.py            a CallbackRunner from Keras' `callbacks` and `verbose`, with Keras' bar
    predict.py              the outputs for all examples, gathered on every worker
    messages.py             lines on standard error
    adapters/               arrays, tf.data, PyDataset and generators as shards of global batches

Importing these modules changes nothing in Keras. Only `tfdist/__init__.py` and `run.py` import this package.
"""
