"""Reports of a run: console, metrics.jsonl and TensorBoard. Only the chief reports; all workers print warnings."""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.report import files, lines, metrics_file, tensorboard_events
from tfdist.report.console import Console
from tfdist.report.lines import Row

# Names in metrics.jsonl that an objective may not use for its values. A value of a script with such a name gets another
# name, such as "step_".
RESERVED = {
    *("kind", "time", "step", "steps", "epoch", "seconds", "text", "workers"),
    *("learning_rate", "examples_per_second", "examples_per_second_per_replica", "input_wait_share", "skipped"),
    *("worker_shares", "slowest_worker", "name", "num_examples", "best"),
}


@dataclasses.dataclass(slots=True, kw_only=True)
class Reporter:
    """The outputs of a run: the console, and the files of `open_files`. On other workers only `warning` acts."""

    rank: int
    num_replicas: int
    steps_per_epoch: int
    # None except on the chief.
    console: Console | None
    # The path of metrics.jsonl; None: it is not written.
    metrics: str | None = None
    # Paths of event files by run, "train" and "evaluation".
    tensorboard: dict[str, str] = dataclasses.field(default_factory=dict)
    # (step, hash) of the last state that was recorded.
    last_state: tuple[int, str] | None = None
    # Paths whose failure has been reported.
    failed_files: set[str] = dataclasses.field(default_factory=set)

    def open_files(
        self,
        workdir: str | os.PathLike[str] | None,
        *,
        tensorboard: bool,
        evaluates: bool = True,
        resume_step: int | None = None,
        resume_evaluated: int | None = None,
    ) -> None:
        """Opens metrics.jsonl and event files on the chief, without the reports of steps that a resumed run repeats.

        Args:
            workdir: None: there are no files.
            tensorboard: whether event files are written; `evaluates`: those of evaluations, too.
            resume_step: the step of the restored checkpoint; None: only incomplete lines are removed.
            resume_evaluated: its last evaluated step; None: `resume_step`.

        Raises:
            OSError: the workdir cannot be written.
            ValueError: metrics.jsonl cannot be read.
        """
        if self.console is None or workdir is None:
            return
        files.make_workdir(workdir)
        self.metrics = os.path.join(workdir, metrics_file.METRICS)
        removed = metrics_file.trim_metrics(self.metrics, resume_step, resume_evaluated)
        last = {tensorboard_events.TRAIN: resume_step}
        if evaluates:
            last[tensorboard_events.EVALUATION] = resume_step if resume_evaluated is None else resume_evaluated
        for run, step in last.items() if tensorboard else ():
            self.tensorboard[run], start = tensorboard_events.start_event_file(os.fspath(workdir), run, step)
            self._append(self.tensorboard[run], start)
        if removed:
            text = f"removed {removed} lines of {self.metrics} after step {resume_step}: these steps run again"
            self.event(text, resume_step)

    def workers(self, lines: list[str], shown: list[str]) -> None:
        """Reports the roster, one line per worker, before the first step; `shown` are the lines for the console."""
        self.lines(shown)
        if self.console is not None:
            self._record(kind="workers", workers=lines)

    def environment(self, values: Mapping[str, Any]) -> None:
        """Records the content of environment.json, which the next start replaces. `workers` records the roster."""
        if self.console is not None:
            self._record(kind="environment", **{name: value for name, value in values.items() if name != "workers"})

    def data(self, hashes: Mapping[str, str]) -> None:
        """Records hashes of a few examples of each split, and of facts about the data, by name."""
        self._record(kind="data", hashes=dict(hashes))

    def state(self, step: int, value: str, function: str, examples: list[int]) -> None:
        """Records the hash of the state after `step`, unless the last record is the same; see docs/reference.md."""
        if (step, value) != self.last_state:
            self.last_state = (step, value)
            self._record(kind="state", step=step, hash=value, function=function, examples=examples)

    def lines(self, lines: Sequence[str]) -> None:
        """Writes lines to the console only."""
        for line in lines if self.console is not None else ():
            self.console.line(line)

    def train(
        self,
        step: int,
        values: dict[str, float],
        *,
        learning_rate: float,
        seconds: float,
        steps: int,
        num_examples: int,
        wait_share: float | None,
        skipped: int | None = None,
        worker_shares: Sequence[tuple[float, float, float]] = (),
    ) -> None:
        """Reports an interval of training.

        Args:
            step: the last optimizer step of the interval, counted from 1.
            values: the objective's values, each the mean over all examples of the interval.
            wait_share: fraction of `seconds` spent waiting for data, 0 to 1; None: the steps were not timed.
            skipped: updates skipped since the start of the run; None: updates are never skipped.
            worker_shares: input, compute and communication fractions, 0 to 1, of each worker in rank order.
        """
        if self.console is None:
            return
        values = _floats(values)
        speed = _per_second(num_examples, seconds)
        rates = {"learning_rate": float(learning_rate), **({} if skipped is None else {"skipped": skipped})}
        speeds = {
            "examples_per_second": speed,
            "examples_per_second_per_replica": speed / self.num_replicas,
            **({} if wait_share is None else {"input_wait_share": float(wait_share)}),
        }
        workers = {}
        if len(worker_shares) > 1:
            communicating = [share[2] for share in worker_shares]
            slowest = communicating.index(min(communicating))  # In the all-reduce the others wait for it.
            shares = [[round(part, 4) for part in one] for one in worker_shares]
            workers = {"worker_shares": shares, "slowest_worker": slowest}
        record = {"steps": steps, **values, **rates, **speeds, **workers}
        self._record(kind="train", step=step, epoch=self._epoch(step), **record, seconds=float(seconds))
        self._scalars("train", step, values | rates | {f"speed/{name}": value for name, value in speeds.items()})
        row = Row(
            step=step,
            epoch=self._epoch(step),
            steps=steps,
            seconds=seconds,
            examples_per_second=speed,
            values=values,
        )
        self.console.train(row)

    def progress(self, step: int, doing: str = "") -> None:
        """Redraws the progress bar between reports. `doing` is the current activity, such as "evaluating"."""
        if self.console is not None:
            self.console.progress(step, doing)

    def evaluation(
        self,
        step: int,
        values: dict[str, float],
        *,
        seconds: float,
        num_examples: int,
        best: bool = False,
    ) -> None:
        """Reports the evaluation of a split with the weights after `step`.

        `values` are the objective's, each the mean over all examples of the split.
        """
        if self.console is None:
            return
        values = _floats(values)
        speed = _per_second(num_examples, seconds)
        extra = {"num_examples": num_examples, "seconds": float(seconds), "examples_per_second": speed, "best": best}
        self._record(kind="evaluation", name="evaluation", step=step, epoch=self._epoch(step), **values, **extra)
        self._scalars("evaluation", step, values)
        pending = self.console.pending
        if pending is not None and pending.step == step:
            pending.evaluation, pending.best = values, best
            self.console.flush()
        elif self.console.verbosity == "all":
            epoch = lines.epochs(self._epoch(step))
            text = ["evaluation", f"step {step}", f"epoch {epoch}", *lines.name_values(values)]
            text += [f"{num_examples:,} examples in {seconds:.3g} s", *(["best so far"] if best else [])]
            self.console.line("  ".join(text))

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Writes fields of the config, by dotted name, for TensorBoard's HParams."""
        if self.tensorboard:
            directory = os.path.dirname(os.path.dirname(next(iter(self.tensorboard.values()))))
            try:
                tensorboard_events.write_hparams(directory, values)
            except OSError as error:
                self.warning(f"WARNING: no HParams for TensorBoard: {files.describe_error(error)}.")

    def event(self, text: str, step: int | None = None, *, always: bool = False) -> None:
        """Reports an event, such as resumed, saved or stopped, in one line, and the step after which it happened.

        With `always` the console shows it in any case.
        """
        if self.console is None:
            return
        self.console.line(text, always=always)
        self._record(kind="event", text=text, **({} if step is None else {"step": step}))

    def warning(self, text: str) -> None:
        """Prints a warning with the rank to standard error, on every worker; the chief also records it."""
        if self.console is not None:
            self.console.flush()
        erase = "\r\x1b[K" if self.console is not None and self.console.terminal else ""
        with contextlib.suppress(OSError):  # Standard error may be a file on the full disk that the warning is about.
            print(f"{erase}tfdist: worker {self.rank}: {text}", file=sys.stderr, flush=True)
        self._record(kind="warning", text=text)

    def close(self) -> None:
        """Writes the last report to the console, and ends the bar."""
        if self.console is not None:
            self.console.close()

    def _epoch(self, step: int) -> float:
        return round(step / self.steps_per_epoch, 4)

    def _record(self, **record: Any) -> None:
        if self.metrics is not None:
            self._append(self.metrics, metrics_file.json_line(record | {"time": round(time.time(), 3)}))

    def _scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        if run in self.tensorboard:
            self._append(self.tensorboard[run], tensorboard_events.scalars_record(step, values))

    def _append(self, path: str, record: bytes) -> None:
        try:
            files.append(path, record)
        except OSError as error:
            if path in self.failed_files:
                return
            self.failed_files.add(path)
            self.warning(
                f"WARNING: {path} cannot be written ({error.strerror}). Training continues, but records will be "
                "missing from it."
            )


def _floats(values: dict[str, float]) -> dict[str, float]:
    return {f"{name}_" if name in RESERVED else name: float(np.mean(value)) for name, value in values.items()}


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else float("nan")
