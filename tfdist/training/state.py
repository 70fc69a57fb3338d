"""The state of the loop: what a checkpoint holds besides the variables."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

# Fields that have another name in checkpoints.
_SAVED_AS = {"last_evaluated_step": "evaluated", "completed_epochs": "epochs"}


@dataclasses.dataclass(slots=True, kw_only=True)
class IntervalTotals:
    """Totals since the last interval report."""

    # Sums over examples by name, as in `execution.Execution.totals`.
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0

    def add(self, totals: Mapping[str, float], steps: int, seconds: float) -> None:
        self.totals = add_totals(self.totals, totals)
        self.seconds += seconds
        self.steps += steps

    def reset(self) -> None:
        self.totals, self.seconds, self.steps = {}, 0.0, 0


@dataclasses.dataclass(slots=True, kw_only=True)
class BestValue:
    """The best value of `config.checkpoint.best_metric` so far."""

    value: float | None = None
    # The step of its evaluation.
    step: int = 0
    # Its metric and mode, such as "accuracy, max"; "": unknown.
    metric_and_mode: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class TrainingState:
    """The progress of the run: all that changes besides the variables."""

    step: int = 0
    # The last step after which the run was evaluated.
    last_evaluated_step: int = 0
    best: BestValue = dataclasses.field(default_factory=BestValue)
    # Skipped steps since the start of the run.
    skipped: int = 0
    completed_epochs: int = 0
    # 0: unknown.
    steps_per_epoch: int = 0
    # Sums over the examples of the current epoch so far.
    epoch_totals: dict[str, float] = dataclasses.field(default_factory=dict)
    # The values of the current epoch; a metric may have one per class: float32 [classes].
    logs: dict[str, float | np.ndarray] = dataclasses.field(default_factory=dict)
    # The objective's state within an epoch; see `Objective.state`.
    metrics: list[Any] = dataclasses.field(default_factory=list)
    # The learning rate that was configured, if callbacks may change it; None: a schedule computes it.
    learning_rate: float | None = None
    # Hashes of the data; see `start_checks.hash_examples`.
    data: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Saved, so that an interval in which the run was resumed has the same report as without the interruption.
    interval: IntervalTotals = dataclasses.field(default_factory=IntervalTotals)

    def to_json(self) -> dict[str, Any]:
        values = {_SAVED_AS.get(name, name): value for name, value in dataclasses.asdict(self).items()}
        best = values.pop("best")
        values |= {"best": best["value"], "best_step": best["step"], "best_of": best["metric_and_mode"]}
        values["logs"] = {name: np.asarray(value).tolist() for name, value in self.logs.items()}
        return values | values.pop("interval")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainingState":
        """Returns what `to_json` saved; fields of another release are ignored, missing ones have their defaults."""
        best = BestValue(
            value=values.get("best"), step=values.get("best_step", 0), metric_and_mode=values.get("best_of", "")
        )
        state = cls(**_pick(cls, values), best=best, interval=IntervalTotals(**_pick(IntervalTotals, values)))
        state.logs = {
            name: np.array(value, np.float32) if isinstance(value, list) else value
            for name, value in state.logs.items()
        }
        return state

    def start_epoch(self) -> None:
        self.epoch_totals, self.logs = {}, {}

    def count_epochs(self, steps_per_epoch: int) -> None:
        """Recounts the epochs if their number of steps has changed."""
        if self.steps_per_epoch not in (0, steps_per_epoch):
            self.completed_epochs, self.metrics = self.step // steps_per_epoch, []
            self.start_epoch()
        self.steps_per_epoch = steps_per_epoch

    def reset_best_if_changed(self, metric: str | None, mode: str) -> None:
        """Resets the best value if the metric or the mode has changed."""
        if metric is None:
            return
        if self.best.metric_and_mode not in ("", f"{metric}, {mode}"):
            self.best = BestValue()
        self.best.metric_and_mode = f"{metric}, {mode}"

    def add(self, totals: Mapping[str, float], steps: int, seconds: float) -> None:
        self.interval.add(totals, steps, seconds)
        self.epoch_totals = add_totals(self.epoch_totals, totals)


def _pick(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {_SAVED_AS.get(field.name, field.name): field.name for field in dataclasses.fields(kind)}
    return {names[name]: value for name, value in values.items() if name in names and name not in ("interval", "best")}


def add_totals(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Returns the sums of two executions' totals, by name."""
    return {name: totals.get(name, 0.0) + value for name, value in more.items()}
