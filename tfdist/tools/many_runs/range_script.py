"""Runs a Keras script until its first fit has done some steps with rising learning rates: for `tfdist lr_range`.

python -m tfdist.tools.many_runs.range_script RESULT.json LOWEST HIGHEST STEPS my_script.py --its=flags
"""

import contextlib
import importlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from tfdist.config import patching


class RangeDone(BaseException):
    """All steps are done: ends `fit`, and the script."""


class RisingRate(keras.callbacks.Callback):
    """Sets the rate before each batch, and writes rates and losses when all steps are done, or the loss is not finite.

    Keras reports the mean loss since the start of the epoch; the loss of a batch follows from two of them.
    """

    def __init__(self, result: Path, lowest: float, highest: float, steps: int):
        super().__init__()
        self.result, self.rates = result, [lowest * (highest / lowest) ** (i / (steps - 1)) for i in range(steps)]
        self.pairs: list[tuple[float, float]] = []
        self.before = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The mean starts anew."""
        self.before = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate of the step."""
        self.model.optimizer.learning_rate = self.rates[len(self.pairs)]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the loss of the batch; raises `RangeDone` after the last one."""
        total = (batch + 1) * float(logs["loss"])
        loss, self.before = total - self.before, total
        self.pairs.append((self.rates[len(self.pairs)], loss))
        if len(self.pairs) == len(self.rates) or loss != loss or abs(loss) == float("inf"):
            self.result.parent.mkdir(parents=True, exist_ok=True)
            self.result.write_text(json.dumps(self.pairs))
            raise RangeDone


def with_rising_rate(make: Callable[[], RisingRate]) -> Callable[..., Any]:
    """Returns a function in the place of a `fit`, which calls the original one with the callback, without a workdir."""

    def fit(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        bound = inspect.signature(original).bind(*arguments, **keywords)
        given = bound.arguments
        model = given["model"] if "model" in given else given["self"]
        optimizer = model.optimizer
        if isinstance(optimizer.get_config().get("learning_rate"), dict):  # A schedule, which cannot be set.
            model.optimizer = type(optimizer).from_config(optimizer.get_config() | {"learning_rate": 1e-3})
        callback = make()
        given["epochs"] = given.get("initial_epoch", 0) + len(callback.rates)  # An epoch has a step or more.
        given["callbacks"] = [callback]
        for name in ("workdir", "validation_data", "validation_split"):
            given.pop(name, None)
        return original(*bound.args, **bound.kwargs)

    return fit


def main(words: Sequence[str]) -> None:
    """Runs the script."""
    result, lowest, highest, steps, script, *arguments = words
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    front = importlib.import_module("tfdist")  # Whose fit a script calls.
    fit = with_rising_rate(lambda: RisingRate(Path(result), float(lowest), float(highest), int(steps)))
    with contextlib.suppress(RangeDone):
        with patching.patch(keras.Model, "fit", fit), patching.patch(front, "fit", fit):
            runpy.run_path(script, run_name="__main__")
        sys.exit(f"{script} ended before {steps} steps of fit were done: choose fewer --steps.")


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1:])
