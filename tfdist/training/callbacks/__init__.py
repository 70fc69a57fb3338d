"""keras.callbacks on several workers: the chief runs them, and what they change is broadcast to all workers.

callback_runner.py calls the hooks; broadcast.py copies changed variables; state.py saves and restores callbacks.
"""
