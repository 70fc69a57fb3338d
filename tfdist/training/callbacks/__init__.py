"""keras.callbacks on several workers: what they do to the model is the chief's word, broadcast to all workers.

    CallbackRunner          callback_runner.py: calls the hooks, synchronises the workers after them
    from_config.py          the callbacks of `config.callbacks`
    broadcast.py            changed variables and attributes, from the chief to all workers
    active_hooks.py         which hooks have an effect: the others are not synchronised
    state.py                attributes of callbacks in checkpoints
    progress_bar.py         Keras' progress bar, moved once per execution

A run without callbacks has a CallbackRunner that does nothing.
"""
