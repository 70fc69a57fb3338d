"""Reports of a run: console, metrics.jsonl and TensorBoard. Only the chief reports; all workers print warnings."""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from tfdist.report import files, lines, metrics_file, tensorboard_events
from tfdist.report.console import Console
from tfdist.report.lines import LineFormat, Row

# Names in metrics.jsonl that an objective may not use for its values.
RESERVED = {
    *("kind", "time", "step", "steps", "epoch", "seconds", "text", "workers"),
    *("learning_rate", "examples_per_second", "examples_per_second_per_replica", "input_wait_share", "skipped"),
    *("worker_shares", "slowest_worker", "name", "num_examples", "best"),
}

# With more workers than this, metrics.jsonl has only two of them.
_MAX_WORKERS_RECORDED = 16
# A loss of more than this part of the loss of a guess is that of a model that has learned nothing.
_LIKE_GUESSING = 0.97
# After so many steps most models have learned something.
_FEW_STEPS = 50


@dataclasses.dataclass(slots=True, kw_only=True)
class Reporter:
    """The outputs of a run; made by `open_report`. On workers other than the chief, only `warning` acts."""

    rank: int
    num_replicas: int
    steps_per_epoch: int
    # None except on the chief.
    console: Console | None
    # A second line per report: learning rate, and the time shares of replicas and workers.
    verbose: bool = False
    # None without a workdir.
    metrics: files.AppendOnlyFile | None = None
    # Event files by run, "train" and "evaluation"; empty without a workdir or without TensorBoard.
    tensorboard: dict[str, files.AppendOnlyFile] = dataclasses.field(default_factory=dict)
    # The loss of a guess among all classes, until it is compared with that of the first epoch; None: not known.
    guessed_loss: float | None = None
    # (step, hash) of the last state that was recorded.
    last_state: tuple[int, str] | None = None
    # Paths whose failure has been reported.
    failed_files: set[str] = dataclasses.field(default_factory=set)

    def start(self, step: int) -> None:
        """Records that the run starts or resumes after `step`; all lines before this one are of `step` or earlier."""
        self._record(kind=metrics_file.START, step=step)

    def workers(self, lines: list[str], shown: list[str] | None = None) -> None:
        """Reports the roster, one line per worker, before the first step.

        `shown` are the lines for the console; None: all.
        """
        self.lines(lines if shown is None else shown)
        if self.console is not None:
            self._record(kind="workers", workers=lines)

    def environment(self, values: Mapping[str, Any]) -> None:
        """Records the content of environment.json, which the next start replaces; of the roster, see `workers`."""
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

        Raises:
            ValueError: the name of a value is reserved in metrics.jsonl.
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
            count = len(worker_shares)
            ranks = range(count) if count <= _MAX_WORKERS_RECORDED else lines.extreme_workers(worker_shares)
            shares = [[round(part, 4) for part in worker_shares[rank]] for rank in ranks]
            workers = {"worker_shares": shares, "slowest_worker": lines.slowest_worker(worker_shares)}
        record = {"steps": steps, **values, **rates, **speeds, **workers}
        self._record(kind="train", step=step, epoch=self._epoch(step), **record, seconds=float(seconds))
        self._scalars("train", step, values, rates, speeds, steps=steps)
        waiting = [] if wait_share is None else [f"waiting for data {wait_share:.0%}"]
        shares = lines.describe_shares(worker_shares) if workers else waiting
        row = Row(
            step=step,
            epoch=self._epoch(step),
            steps=steps,
            seconds=seconds,
            examples_per_second=speed,
            values=values,
            details=self._details(learning_rate, speed, shares) if self.verbose else (),
        )
        self._compare_with_guess(step, values.get("loss", 0.0), learning_rate)
        parts = [*lines.name_values(values), f"{lines.rate(speed)} {self.console.line_format.examples}/s", *waiting]
        self.console.train(row, parts, step_seconds=seconds / max(1, steps))

    def _compare_with_guess(self, step: int, loss: float, learning_rate: float) -> None:
        """Warns once, after the first epoch and some steps, if the model has learned nothing."""
        if self.guessed_loss is None or step < max(self.steps_per_epoch, _FEW_STEPS):
            return
        guessed, self.guessed_loss = self.guessed_loss, None
        if loss > _LIKE_GUESSING * guessed:
            epoch = lines.epochs(self._epoch(step))
            self.warning(
                f"WARNING: after epoch {epoch} the loss is {loss:.4g}, and a guess has {guessed:.4g}: "
                f"nothing is learned yet. If it stays so, change config.learning_rate.peak (now {learning_rate:.4g}) "
                "by a factor of 10, down or up, and check inputs and labels in config.data."
            )

    def _details(self, learning_rate: float, speed: float, shares: list[str]) -> list[str]:
        per_replica = f"{lines.rate(speed / self.num_replicas)} {self.console.line_format.examples}/s per replica"
        return [f"learning rate {learning_rate:.4g}", *([per_replica] if self.num_replicas > 1 else []), *shares]

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
        """Reports the evaluation of a split with the weights after `step`; raises ValueError as `train`.

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
            self.console.parts(text)

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes `text`, in Markdown, for TensorBoard."""
        if "train" in self.tensorboard:
            self._append(self.tensorboard["train"], tensorboard_events.text_record(step, tag, text))

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Writes fields of the config, by dotted name, for TensorBoard's HParams."""
        if self.tensorboard:
            directory = os.path.dirname(os.path.dirname(next(iter(self.tensorboard.values())).path))
            try:
                tensorboard_events.write_hparams(directory, values)
            except OSError as error:
                self.warning(f"WARNING: no HParams for TensorBoard: {files.describe_error(error)}.")

    def event(self, text: str, step: int | None = None, *, more: Sequence[str] = (), always: bool = False) -> None:
        """Reports an event, such as resumed, saved or stopped, in one line, and the step after which it happened.

        Parts in `more` go to further lines if one would be too long; with `always` the console shows it in any case.
        """
        if self.console is None:
            return
        self.console.parts([text, *more], always=always)
        self._record(kind="event", text="  ".join([text, *more]), **({} if step is None else {"step": step}))

    def warning(self, text: str) -> None:
        """Prints a warning with the rank to standard error, on every worker; the chief also records it."""
        if self.console is not None:
            self.console.flush()
        erase = "\r\x1b[K" if self.console is not None and self.console.terminal else ""
        with contextlib.suppress(OSError):  # Standard error may be a file on the full disk that the warning is about.
            print(f"{erase}tfdist: worker {self.rank}: {text}", file=sys.stderr, flush=True)
        self._record(kind="warning", text=text)

    def close(self) -> None:
        """Closes the files and ends the bar."""
        opened = [*self.tensorboard.values(), *([] if self.metrics is None else [self.metrics])]
        for file in opened:
            self._append(file, b"")  # A file that was deleted after the last record is written again.
        for file in opened:
            file.close()
        self.metrics, self.tensorboard = None, {}
        self.end_bar()

    def end_bar(self) -> None:
        """Writes the last report to the console, and ends the bar."""
        if self.console is not None:
            self.console.close()

    def _epoch(self, step: int) -> float:
        return round(step / self.steps_per_epoch, 4)

    def _record(self, **record: Any) -> None:
        if self.metrics is not None:
            self._append(self.metrics, metrics_file.json_line(record | {"time": round(time.time(), 3)}))

    def _scalars(self, run: str, step: int, *values: Mapping[str, float], steps: int = 1) -> None:
        """Writes the values of a report of the last `steps` steps for TensorBoard; see `scalars_records`."""
        epoch = step // self.steps_per_epoch
        ended = epoch > (step - steps) // self.steps_per_epoch
        if run in self.tensorboard:
            record = tensorboard_events.scalars_records(step, epoch if ended else None, *values)
            self._append(self.tensorboard[run], record)

    def _append(self, file: files.AppendOnlyFile, record: bytes) -> None:
        try:
            if file.append(record):
                self.warning(f"WARNING: {file.path} was deleted or replaced by another program, and was opened again.")
        except OSError as error:
            if file.path in self.failed_files:
                return
            self.failed_files.add(file.path)
            self.warning(
                f"{file.path} cannot be written ({error.strerror}). Training continues, but records will be missing "
                "from it."
            )


def open_report(
    workdir: str | os.PathLike[str] | None,
    *,
    chief: bool,
    rank: int,
    num_replicas: int,
    total_steps: int,
    steps_per_epoch: int,
    tensorboard: bool = False,
    console: str = "all",
    verbose: bool = False,
    evaluates: bool = True,
    examples: str = "examples",
    resume_step: int | None = None,
    resume_evaluated: int | None = None,
    stream: TextIO | None = None,
) -> Reporter:
    """Opens the outputs of a run; those of the chief without the reports of steps that a resumed run repeats.

    Args:
        workdir: of metrics.jsonl and tensorboard/; None: console only.
        console: "all", "events" (no interval and evaluation lines) or "nothing".
        evaluates: whether evaluations are expected.
        tensorboard: whether event files are written.
        examples: what an example is called in lines: "images", for example.
        resume_step: the step of the restored checkpoint; None: nothing is removed.
        resume_evaluated: its last evaluated step; None: `resume_step`.
        stream: the console; None: standard output.

    Raises:
        OSError: the workdir cannot be written.
    """
    screen = None
    if chief:
        line_format = LineFormat(epochs=total_steps / steps_per_epoch, examples=examples, evaluates=evaluates)
        screen = Console(
            stream=stream or sys.stdout, total_steps=total_steps, line_format=line_format, verbosity=console
        )
    reporter = Reporter(
        rank=rank, num_replicas=num_replicas, steps_per_epoch=steps_per_epoch, console=screen, verbose=verbose
    )
    if not chief or workdir is None:
        return reporter
    files.make_workdir(workdir)
    path = os.path.join(workdir, metrics_file.METRICS)
    removed = metrics_file.trim_metrics(path, resume_step, resume_evaluated)
    reporter.metrics = files.open_append_only(path)
    if resume_step is not None:
        reporter.start(resume_step)
    if tensorboard:
        reporter.tensorboard = tensorboard_events.open_event_files(
            os.fspath(workdir), resume_step, resume_evaluated, evaluates=evaluates, warn=reporter.warning
        )
    if removed:
        text = f"removed {removed} lines of {path} after step {resume_step}: these steps run again"
        reporter.event(text, resume_step)
    return reporter


def _floats(values: dict[str, float]) -> dict[str, float]:
    reserved = sorted(RESERVED & set(values))
    if reserved:
        raise ValueError(
            f"The objective returns a value named {reserved[0]!r}, which is reserved in metrics.jsonl: rename it. "
            f"Received: {sorted(values)}"
        )
    return {name: float(np.mean(value)) for name, value in values.items()}


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else float("nan")
