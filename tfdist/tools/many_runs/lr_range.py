"""Finds a learning rate: a short training with a rate that rises exponentially (Smith, arXiv 1506.01186).

    python -m tfdist lr_range --config=configs/digits.py
    python -m tfdist lr_range --script="my_script.py --its=flags"

It prints the loss against the rate, draws it, and suggests a rate: a tenth of that with the smallest loss, or up to
half of it with a warm-up and a decay. A script runs in one process, unchanged, until its first `fit` has done the
steps; the rate of its optimizer is set in each of them.
"""

import dataclasses
import functools
import itertools
import json
import math
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.config import learning_rate, schema
from tfdist.config.command_line import tool_words, words
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import measured, style

USAGE = "--config=FILE [flags]"
# The smoothed loss is the mean over so many steps before and after.
_WINDOW = 5
# The test ends where the smoothed loss is above its smallest value by more than this multiple of that value, or of what
# the loss has fallen: losses may be below 0.
_DIVERGED = 3.0
# The suggestion is below the rate with the smallest loss by this factor, where the loss still falls; and by this one if
# the rate is only that high for a part of the run.
_BELOW, _PEAK_BELOW = 10.0, 2.0
_FEWEST = 20
_SCHEDULED = "with a warm-up and a schedule that lowers it again"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    tool_words.define_config_or_script()
    flags.DEFINE_float("lowest", 1e-6, "The first learning rate.", lower_bound=0.0)
    flags.DEFINE_float("highest", 10.0, "The last learning rate.", lower_bound=0.0)
    flags.DEFINE_integer("steps", 200, "Steps of the training.", lower_bound=_FEWEST)
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-lr for a config NAME.py.")


parse = functools.partial(tool_words.parse_config_or_script, command="tfdist lr_range")


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Rates, the loss of the step with each, and the smoothed loss; equal lengths, rising rates."""

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]

    @property
    def lowest_at(self) -> float:
        """The rate with the smallest smoothed loss."""
        return self.rates[min(range(len(self.rates)), key=lambda index: self.smoothed[index])]

    @property
    def suggestion(self) -> float:
        """A rate to train with, rounded to two digits."""
        return float(f"{self.lowest_at / _BELOW:.1e}")

    @property
    def peak(self) -> float:
        """A rate for the peak of a schedule, rounded to two digits."""
        return float(f"{self.lowest_at / _PEAK_BELOW:.1e}")


def smooth(pairs: Sequence[tuple[float, float | None]]) -> Range:
    """Smooths the losses of (rate, loss) pairs, up to the step where they have diverged; None: not finite.

    Raises ValueError if fewer than 20 losses are finite.
    """
    finite = list(itertools.takewhile(lambda pair: pair[1] is not None and math.isfinite(pair[1]), pairs))
    losses = [loss for _, loss in finite]
    smoothed: list[float] = []
    for index in range(len(losses)):
        wide = min(_WINDOW, index, len(losses) - 1 - index)
        value = statistics.mean(losses[index - wide : index + wide + 1])
        if index >= _FEWEST:
            low = min(smoothed)
            if value > low + _DIVERGED * max(abs(low), smoothed[0] - low):
                break
        smoothed.append(value)
    rates, losses = [rate for rate, _ in finite[: len(smoothed)]], losses[: len(smoothed)]
    if len(rates) < _FEWEST:
        raise ValueError(
            f"the loss was finite in {len(rates)} steps only, and {_FEWEST} are needed: choose a smaller --lowest."
        )
    return Range(rates, losses, smoothed)


def settings(config: schema.Config, lowest: float, highest: float, steps: int) -> list[str]:
    """Returns the flags of the training, which neither evaluates nor saves."""
    fields = child_runs.BARE | {
        "train.steps": steps,
        "train.epochs": "none",
        "train.nonfinite": "stop",
        "learning_rate.peak": highest,
        "learning_rate.scaling": "none",
        "learning_rate.warmup_epochs": 0,
        "learning_rate.schedule": {"target": "tfdist.zoo.schedules:exponential", "initial": lowest / highest},
        "report.every.steps": 1,
        "report.every.epochs": "none",
    }
    if "learning_rate" in config.optimizer:
        fields["optimizer.learning_rate"] = highest
    return [f"--config.{name}={value}" for name, value in fields.items()]


def main(argv: list[str]) -> None:
    """Trains, and shows what the loss says."""
    values = flags.FLAGS
    if not 0 < values.lowest < values.highest:
        raise ValueError(
            f"--lowest must be above 0 and below --highest={values.highest:g}. Received: {values.lowest:g}"
        )
    script = shlex.split(values.script or "")
    if script and not Path(script[0]).is_file():
        raise ValueError(f"--script={values.script}: there is no file {script[0]}.")
    name = Path(script[0]).stem if script else config_flags.config_name()
    workdir = Path(values.workdir or f"runs/{name}-lr").expanduser()
    run, log = workdir / "run", workdir / "run.log"
    print(f"{values.steps} steps, with rates from {values.lowest:g} to {values.highest:g} ...", flush=True)
    if script:
        found = of_script(script, run, log)
    else:
        fields = settings(values["config"].value, values.lowest, values.highest, values.steps)
        changes = [*words.config_arguments(sys.argv[1:]), *fields, f"--workdir={run}"]
        code = child_runs.run_command([sys.executable, "-m", "tfdist.main", *changes], log, fresh=run)  # Not resumed.
        found = [(line["learning_rate"], line["loss"]) for line in child_runs.reports(run)]
        if len(found) < values.steps and run_state.read(run).state != "diverged":
            raise ValueError(f"the training exited with code {code}; the end of {log}:\n{child_runs.end_of(log)}")
    show(smooth(found), workdir, name, values["config"].value)


def of_script(script: Sequence[str], folder: Path, log: Path) -> list[tuple[float, float]]:
    """Runs a script until its first fit has done the steps; returns their rates and losses.

    Raises ValueError, with the end of its log, if it ended before, or cannot be used.
    """
    values = flags.FLAGS
    result = folder / "losses.json"
    arguments = [str(result), str(values.lowest), str(values.highest), str(values.steps)]
    command = [sys.executable, "-m", "tfdist.tools.many_runs.range_script", *arguments, *script]
    code = child_runs.run_command(command, log, fresh=folder)
    if not result.is_file():
        raise ValueError(f"the script exited with code {code}; the end of {log}:\n{child_runs.end_of(log)}")
    return [(rate, loss) for rate, loss in json.loads(result.read_text())]


def show(found: Range, workdir: Path, name: str, config: schema.Config | None) -> None:
    """Prints the result, and writes table and picture."""
    rows = list(zip(found.rates, found.losses, found.smoothed, strict=True))
    every = max(1, len(rows) // 12)
    print(tables.text(("rate", "loss", "smoothed"), [tuple(f"{value:.3g}" for value in row) for row in rows[::every]]))
    tables.write_csv(workdir / "lr_range.csv", ("learning_rate", "loss", "smoothed"), rows)
    window = f"Smoothed: mean of {2 * _WINDOW + 1} steps."
    caption = f"{name}: {len(rows)} steps, the rate rises by the same factor in each. {window}"
    print(style.save(workdir / "lr_range", lambda: measured.draw_rate_range(found, caption=caption)))
    print(f"The loss is smallest at a rate of {found.lowest_at:.2g}.")
    if found.lowest_at == found.rates[-1]:
        print("That is the last one: a higher --highest may show a better rate.")
    if config is None:
        print(f"Suggestion: a learning rate of {found.suggestion:g}, or up to {found.peak:g} {_SCHEDULED}.")
        return
    one = dataclasses.replace(config.learning_rate, peak=1.0)
    factor = learning_rate.peak(dataclasses.replace(config, learning_rate=one))
    scaled = "" if factor == 1 else f" (x {factor:g} by config.learning_rate.scaling)"
    rate, peak = (float(f"{value / factor:.2g}") for value in (found.suggestion, found.peak))
    # Where `settings` has found the rate of the config.
    of_optimizer = config.learning_rate.peak is None and "learning_rate" in config.optimizer
    field = "optimizer.learning_rate" if of_optimizer else "learning_rate.peak"
    print(f"Suggestion: --config.{field}={rate:g}, or up to {peak:g} {_SCHEDULED}{scaled}")
