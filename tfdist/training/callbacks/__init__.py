"""keras.callbacks on several workers: what they do to the model is the chief's word, broadcast to all workers.

NoCallbacks             no_callbacks.py: what the loop sees; for a run without callbacks
CallbackRunner          callback_runner.py: calls the hooks, synchronises the workers after them
broadcast.py            changed variables and attributes, from the chief to all workers
active_hooks.py         which hooks have an effect: the others are not synchronised
state.py                attributes of callbacks in checkpoints
pause.py                ends a run after some epochs, as a signal would
"""
