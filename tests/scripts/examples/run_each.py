"""Runs examples one after another, each as `python EXAMPLE.py` does, and writes down what came of them.

usage: python tests/scripts/examples/run_each.py OUT [--kill] [--same_draws] [--seed=N] NAME[:EPOCHS]...

OUT is the directory for the results and for what the examples write into their working directory.
--kill ends every worker by SIGKILL in the second epoch of the first fit.
--same_draws makes random numbers functions of the step and the example; see same_draws.py.
--seed=N adds N to all seeds, also to those of tfdist.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import runpy
import signal

import keras
import numpy as np
import tensorflow as tf

FOLDER = pathlib.Path(__file__).resolve().parent


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def with_options(fit, kill, epochs):
    """Returns `fit` with the callback that kills if `kill`, and with other `epochs` than the script's unless ""."""

    def call(model, *args, callbacks=None, **keywords):
        callbacks = [*(callbacks or []), *([Kill()] if kill else [])]
        return fit(model, *args, callbacks=callbacks, **keywords | ({"epochs": int(epochs)} if epochs else {}))

    return call


def add_to_seeds(number):
    """Adds `number` to the seeds of weights and of generators, and makes it tfdist's."""
    from tfdist.keras_fit import api

    set_random_seed, begin = keras.utils.set_random_seed, keras.random.SeedGenerator.__init__

    def begin_with(generator, seed=None, **keywords):
        begin(generator, seed + number if isinstance(seed, int) else seed, **keywords)

    keras.utils.set_random_seed = lambda seed: set_random_seed(seed + number)
    keras.random.SeedGenerator.__init__ = begin_with
    api.fit = functools.partial(api.fit, seed=number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--same_draws", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    flags.out = flags.out.resolve()
    os.chdir(flags.out)
    fit, drawing = keras.Model.fit, contextlib.nullcontext
    if flags.same_draws:
        import same_draws

        drawing = same_draws.installed
    if flags.seed:
        add_to_seeds(flags.seed)
    # Graph optimizers take longer than these small trainings.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name, _, epochs in (text.partition(":") for text in flags.names):
        keras.utils.clear_session()
        keras.Model.fit = with_options(fit, flags.kill, epochs)  # Always: a resumed fit is called from the same place.
        path = f"{FOLDER / name}.py"
        with drawing(path):
            script = runpy.run_path(path, run_name="__main__")
        with open(flags.out / f"{name}.json", "w") as file:
            json.dump(script["history"].history, file)
        np.savez(flags.out / f"{name}.npz", *script["model"].get_weights())


if __name__ == "__main__":
    main()
