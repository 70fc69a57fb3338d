"""A callback that makes epochs last, for tests that must meet a run while it trains."""

import time

import keras


class SlowEpochs(keras.callbacks.Callback):
    """Waits `seconds` at the end of each epoch."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(self.seconds)
