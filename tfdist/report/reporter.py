"""What a run tells about itself: console, metrics.jsonl and TensorBoard. The chief alone; others speak up in trouble.

A line of workdir/metrics.jsonl is one JSON object, with `kind`, and `time` in seconds since 1970:

    train       the means over the interval that ended at `step`: the objective's values under their own names,
                `learning_rate`, `examples_per_second`, `examples_per_second_per_replica`, `input_wait_share` (the
                part of the time, 0 to 1, spent waiting for data), `worker_shares` (of several workers, in rank order,
                the parts of input, compute and communication), `slowest_worker` (the rank of the one for which the
                others wait), `seconds` (of the interval), `epoch` (passes made), `skipped` (updates left out since
                the run began, where the config allows it)
    evaluation  the values over the whole split, `name`, `num_examples`, `seconds`, `best` (whether the best so far)
    workers     one line of text a worker: who it is, which devices it holds, how they talk
    event       `text`, and `step` where one is meant: resumed, saved, stopped
    warning     `text`

NaN and the infinities are null there, because JSON has no word for them; the console names them.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from tfdist.report import console as console_lib
from tfdist.report import files, metrics_file, tensorboard_events
from tfdist.report.console import Console

# Names of metrics.jsonl that an objective's values cannot have.
RESERVED = {
    *("kind", "time", "step", "epoch", "seconds", "text", "workers"),
    *("learning_rate", "examples_per_second", "examples_per_second_per_replica", "input_wait_share", "skipped"),
    *("worker_shares", "slowest_worker", "name", "num_examples", "best"),
}
# Whose time a line of the log gives; of more workers, that of two.
_MOST_WORKERS = 4


@dataclasses.dataclass(slots=True, kw_only=True)
class Reporter:
    """Where a run reports to; made by `open_report`. On workers other than the chief all but `warning` do nothing."""

    rank: int
    num_replicas: int
    steps_per_epoch: int
    global_batch: int
    # None on all workers but the chief.
    console: Console | None
    # None without a workdir.
    metrics: files.AppendOnlyFile | None = None
    # None without a workdir or without TensorBoard.
    events: files.AppendOnlyFile | None = None
    # Files whose failure has been told.
    failed: set[str] = dataclasses.field(default_factory=set)

    def workers(self, lines: list[str]) -> None:
        """Says who takes part, a line a worker, before the first step."""
        if self.console is None:
            return
        for line in lines:
            self.console.line(line)
        self._record(kind="workers", workers=lines)

    def train(
        self,
        step: int,
        values: dict[str, float],
        *,
        learning_rate: float,
        seconds: float,
        steps: int,
        wait_share: float,
        skipped: int | None = None,
        worker_shares: Sequence[tuple[float, float, float]] = (),
    ) -> None:
        """Reports an interval of training.

        Args:
            step: the optimizer step with which it ended, counted from 1.
            values: the objective's values, each the mean over all examples of the interval.
            learning_rate: of its last step.
            seconds: how long it took, of which the share `wait_share` (0 to 1) went by waiting for data.
            steps: how many steps it had.
            wait_share: see `seconds`.
            skipped: updates left out since the run began; None where that does not happen.
            worker_shares: what each worker did with its time, in rank order: the parts of input, compute and
                communication, 0 to 1.

        Raises:
            ValueError: a value has a name that metrics.jsonl uses itself.
        """
        if self.console is None:
            return
        values = _floats(values)
        speed = _per_second(steps * self.global_batch, seconds)
        measured = {
            "learning_rate": float(learning_rate),
            "examples_per_second": speed,
            "examples_per_second_per_replica": speed / self.num_replicas,
            "input_wait_share": float(wait_share),
            **({} if skipped is None else {"skipped": skipped}),
        }
        workers = {}
        if len(worker_shares) > 1:
            rounded = [[round(part, 4) for part in shares] for shares in worker_shares]
            workers = {"worker_shares": rounded, "slowest_worker": slowest(worker_shares)}
        record = values | measured | workers
        self._record(kind="train", step=step, epoch=self._epoch(step), **record, seconds=float(seconds))
        self._scalars(step, "train", values | measured)
        parts = [
            f"epoch {self._epoch(step):.2f}",
            *_named(values),
            f"{console_lib.rate(speed)} examples/s ({console_lib.rate(speed / self.num_replicas)} per replica)",
            *([_workers(worker_shares)] if workers else [f"input wait {wait_share:.0%}"]),
            f"learning rate {learning_rate:.4g}",
        ]
        self.console.train(step, parts, step_seconds=seconds / max(1, steps))

    def progress(self, step: int, doing: str = "") -> None:
        """Moves the bar of a terminal between reports; cheap. `doing` says what else goes on, such as "evaluating"."""
        if self.console is not None:
            self.console.progress(step, doing)

    def evaluation(
        self,
        step: int,
        values: dict[str, float],
        *,
        seconds: float,
        num_examples: int,
        name: str = "evaluation",
        best: bool = False,
    ) -> None:
        """Reports the evaluation of a whole split after `step`.

        Args:
            step: the optimizer step whose weights were evaluated.
            values: the objective's values, each the mean over all examples of the split.
            seconds: how long it took.
            num_examples: the size of the split.
            name: the first half of TensorBoard's tags, such as "evaluation/accuracy".
            best: whether the metric that decides has its best value so far.

        Raises:
            ValueError: as `train`.
        """
        if self.console is None:
            return
        values = _floats(values)
        speed = _per_second(num_examples, seconds)
        extra = {"num_examples": num_examples, "seconds": float(seconds), "examples_per_second": speed, "best": best}
        self._record(kind="evaluation", name=name, step=step, epoch=self._epoch(step), **values, **extra)
        self._scalars(step, name, values)
        text = [name, f"step {step}", f"epoch {self._epoch(step):.2f}", *_named(values)]
        text.append(f"{num_examples:,} examples at {console_lib.rate(speed)}/s")
        self.console.evaluation("  ".join([*text, "best so far"] if best else text))

    def graph(self, graph_def: bytes) -> None:
        """Gives TensorBoard the graph of the model, a serialised GraphDef."""
        if self.events is not None:
            self._append(self.events, tensorboard_events.graph_record(graph_def))

    def histograms(self, step: int, arrays: Mapping[str, Any]) -> None:
        """Gives TensorBoard a histogram of each of `arrays`, NumPy arrays of floats by tag, after `step`."""
        if self.events is not None:
            self._append(self.events, tensorboard_events.histograms_record(step, arrays))

    def event(self, text: str, step: int | None = None) -> None:
        """Says, in one line, something that happened: resumed, saved, stopped."""
        if self.console is None:
            return
        self.console.line(text)
        self._record(kind="event", text=text, **({} if step is None else {"step": step}))

    def warning(self, text: str) -> None:
        """Says what is wrong, on every worker, on standard error, with the worker's rank."""
        erase = "\r\x1b[K" if self.console is not None and self.console.terminal else ""
        with contextlib.suppress(OSError):  # Standard error may lie on the full disk that this is about.
            print(f"{erase}tfdist: worker {self.rank}: {text}", file=sys.stderr, flush=True)
        self._record(kind="warning", text=text)

    def close(self) -> None:
        """Closes the files and leaves the bar."""
        for file in (self.metrics, self.events):
            if file is not None:
                file.close()
        self.metrics = self.events = None
        if self.console is not None:
            self.console.close()

    def _epoch(self, step: int) -> float:
        return round(step / self.steps_per_epoch, 4)

    def _record(self, **record: Any) -> None:
        if self.metrics is not None:
            self._append(self.metrics, metrics_file.json_line(record | {"time": round(time.time(), 3)}))

    def _scalars(self, step: int, prefix: str, values: dict[str, float]) -> None:
        if self.events is not None:
            tagged = {f"{prefix}/{name}": value for name, value in values.items()}
            self._append(self.events, tensorboard_events.scalars_record(step, tagged))

    def _append(self, file: files.AppendOnlyFile, record: bytes) -> None:
        try:
            file.append(record)
        except OSError as error:
            if file.path in self.failed:
                return
            self.failed.add(file.path)
            self.warning(f"{file.path} cannot be written ({error.strerror}). Training goes on; it will miss records.")


def open_report(
    workdir: str | os.PathLike[str] | None,
    *,
    chief: bool,
    rank: int,
    num_replicas: int,
    total_steps: int,
    steps_per_epoch: int,
    global_batch: int,
    tensorboard: bool = True,
    console: str = "all",
    resume_step: int | None = None,
    resume_evaluated: int | None = None,
    stream: TextIO | None = None,
) -> Reporter:
    """Opens what a run reports to.

    Args:
        workdir: where metrics.jsonl and tensorboard/ are; None: the console alone.
        chief: whether this worker is the one that reports.
        rank: this worker's number.
        num_replicas: replicas on all workers.
        total_steps: optimizer steps from the first to the last of the run.
        steps_per_epoch: optimizer steps in an epoch.
        global_batch: examples in one optimizer step.
        tensorboard: whether to write scalars to workdir/tensorboard.
        console: what the console says: "all", "events" (no intervals, no evaluations) or "nothing".
        resume_step: the step of the checkpoint that training goes on from, 0 for a new run: what earlier starts
            reported of later steps is removed. None: nothing is removed, for a run that does not train.
        resume_evaluated: the last step whose evaluation that checkpoint knows of; None: `resume_step`.
        stream: the console; None: standard output.

    Raises:
        OSError: the workdir cannot be written.
    """
    reporter = Reporter(
        rank=rank,
        num_replicas=num_replicas,
        steps_per_epoch=steps_per_epoch,
        global_batch=global_batch,
        console=console_lib.open_console(stream or sys.stdout, total_steps, says=console) if chief else None,
    )
    if not chief or workdir is None:
        return reporter
    files.make_workdir(workdir)
    path = os.path.join(workdir, metrics_file.METRICS)
    removed = metrics_file.trim_metrics(path, resume_step, resume_evaluated)
    reporter.metrics = files.open_append_only(path)
    if tensorboard:
        reporter.events = tensorboard_events.open_events(
            os.path.join(workdir, tensorboard_events.TENSORBOARD), resume_step
        )
    if removed:
        text = f"{removed} lines of {path} on steps after {resume_step} are removed: those steps are made again"
        reporter.event(text, resume_step)
    return reporter


def _floats(values: dict[str, float]) -> dict[str, float]:
    reserved = sorted(RESERVED & set(values))
    if reserved:
        raise ValueError(
            f"The objective returns a value named {reserved[0]!r}, a name that metrics.jsonl uses itself: rename it. "
            f"Received: {sorted(values)}"
        )
    return {name: float(value) for name, value in values.items()}


def slowest(worker_shares: Sequence[tuple[float, float, float]]) -> int:
    """The rank of the worker for which the others wait: it spends the smallest part of its time in communication."""
    return min(range(len(worker_shares)), key=lambda rank: worker_shares[rank][2])


def _workers(worker_shares: Sequence[tuple[float, float, float]]) -> str:
    def text(rank: int) -> str:
        waiting, computing, talking = worker_shares[rank]
        return f"worker {rank} {waiting:.0%} input {computing:.0%} compute {talking:.0%} communication"

    last = slowest(worker_shares)
    # A line has room for few: of many, the slowest, and the one that waits for it most.
    shown = range(len(worker_shares))
    if len(worker_shares) > _MOST_WORKERS:
        shown = sorted({last, max(shown, key=lambda rank: worker_shares[rank][2])})
    return ", ".join([*map(text, shown), f"slowest: worker {last}"])


def _named(values: dict[str, float]) -> list[str]:
    return [f"{name} {console_lib.number(value)}" for name, value in values.items()]


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else float("nan")
