"""Runs examples one after another, each as `python EXAMPLE.py` does, and writes down what came of them.

usage: python tests/scripts/examples/run_each.py OUT [--kill] NAME...

--kill ends every worker by SIGKILL in the second epoch of the first fit.
"""

import json
import os
import pathlib
import runpy
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

FOLDER = pathlib.Path(__file__).parent


class Kill(keras.callbacks.Callback):
    on_all_workers = True

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def with_kill(fit):
    """Returns `fit` with one more callback."""

    def call(model, *args, callbacks=None, **keywords):
        return fit(model, *args, callbacks=[*(callbacks or []), Kill()], **keywords)

    return call


def main(out: pathlib.Path, *names: str) -> None:
    if names[0] == "--kill":
        keras.Model.fit, names = with_kill(keras.Model.fit), names[1:]
    # Graph optimizers take longer than these small trainings.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name in names:
        keras.utils.clear_session()
        script = runpy.run_path(f"{FOLDER / name}.py", run_name="__main__")
        with open(out / f"{name}.json", "w") as file:
            json.dump(script["history"].history, file)
        np.savez(out / f"{name}.npz", *script["model"].get_weights())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
