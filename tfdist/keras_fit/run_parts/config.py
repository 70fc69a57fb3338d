"""The config of a run of a script: what its workdir says, and what the loop reads."""

import dis
from collections.abc import Collection
from typing import Any

import keras

from tfdist import config as config_lib
from tfdist.config import user_code
from tfdist.keras_fit.script import script_state


def of_fit(
    model: keras.Model,
    x: Any,
    batch_size: int,
    epochs: int,
    validation_freq: int | Collection[int],
    shuffle: bool,
    seed: int,
) -> config_lib.Config:
    """Returns the config of a training; arguments as for `fit`."""
    when = (
        {"after": sorted(validation_freq)} if isinstance(validation_freq, Collection) else {"epochs": validation_freq}
    )
    call = {"call": _calling_place()} if script_state.in_script() else {}
    return config_lib.Config(
        model={"class": type(model).__name__, "parameters": model.count_params() if model.built else None, **call},
        data=config_lib.Data(source={"kind": type(x).__name__}, batch_size=batch_size, shuffle=shuffle),
        train=config_lib.Train(
            xla=False,  # `compile(jit_compile=...)` decides.
            epochs=epochs,
        ),
        evaluation=config_lib.Evaluation(every=config_lib.Every(**when)),
        report=config_lib.Report(every=config_lib.Every(epochs=1)),
        seed=seed,
    )


def of_evaluation(model: keras.Model, batch_size: int) -> config_lib.Config:
    """Returns the config of an evaluation, or of steps that are made one by one."""
    return config_lib.Config(
        model={"class": type(model).__name__},
        data=config_lib.Data(batch_size=batch_size),
        train=config_lib.Train(epochs=1),
    )


def _calling_place() -> str:
    """Returns which of the calls of `fit` in a function of the script runs: edits of other lines do not change it."""
    frame = user_code.current_frame()
    if frame is None:
        return "a library"
    names = [one.argval for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    return f"call {names.count('fit')} of fit in {frame.f_code.co_name}"
