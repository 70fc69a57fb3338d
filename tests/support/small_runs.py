"""A small run on the digits in this process, for tests that change one part of it."""

import pathlib
from typing import Any

import keras

from tfdist import config as c
from tfdist.training import loop, setup
from tfdist.training import run as run_lib


def data(**changes: Any) -> c.Data:
    """The digits in batches of 48; `changes` replaces fields."""
    prepare = {"target": "tfdist.zoo.prepare:image", "scale": 1 / 16}
    return c.Data(**{"prepare": prepare, "batch_size": 48} | changes)


def config(**changes: Any) -> c.Config:
    """20 steps of a linear model; `changes` replaces parts."""
    parts = {
        "model": {"target": "lab:linear", "num_classes": 10},
        "data": data(),
        "learning_rate": c.LearningRate(peak=0.01),
        "train": c.Train(steps=20),
        "report": c.Report(tensorboard=False),
    }
    return c.Config(**parts | changes)


def start(workdir: pathlib.Path, **changes: Any) -> run_lib.Run:
    """Makes the run of `config(**changes)` on one device."""
    keras.utils.clear_session()
    return setup.build_run(config(**changes), workdir)


def train(workdir: pathlib.Path, **changes: Any) -> run_lib.Run:
    """Makes the run, or resumes it with another config, and trains to its end."""
    run = start(workdir, **changes)
    assert loop.train(run, allow_config_changes=True) == 0
    return run
