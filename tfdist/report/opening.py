"""Opens the outputs of a run: console, metrics.jsonl and TensorBoard. Imports no TensorFlow."""

import os
import sys
from typing import TextIO

from tfdist.report import console as console_lib
from tfdist.report import files, metrics_file, tensorboard_events
from tfdist.report.reporter import Reporter


def open_report(
    workdir: str | os.PathLike[str] | None,
    *,
    chief: bool,
    rank: int,
    num_replicas: int,
    total_steps: int,
    steps_per_epoch: int,
    tensorboard: bool = True,
    console: str = "all",
    verbose: bool = False,
    evaluates: bool = True,
    examples: str = "examples",
    resume_step: int | None = None,
    resume_evaluated: int | None = None,
    stream: TextIO | None = None,
) -> Reporter:
    """Opens the outputs of a run.

    Args:
        workdir: of metrics.jsonl and tensorboard/; None: console only.
        chief: True on the worker that reports.
        rank: the rank of this worker.
        num_replicas: replicas on all workers.
        total_steps: optimizer steps of the run.
        steps_per_epoch: optimizer steps per epoch.
        tensorboard: write scalars to workdir/tensorboard.
        console: "all", "events" (no interval and evaluation lines) or "nothing".
        verbose: two lines per report.
        evaluates: whether evaluations are expected.
        examples: what an example is called in lines: "images", for example.
        resume_step: the step of the restored checkpoint; reports of later steps are removed. None: nothing is removed.
        resume_evaluated: its last evaluated step; None: `resume_step`.
        stream: the console; None: standard output.

    Raises:
        OSError: the workdir cannot be written.
    """
    screen = _console(stream, total_steps, steps_per_epoch, examples, evaluates, console) if chief else None
    reporter = Reporter(
        rank=rank,
        num_replicas=num_replicas,
        steps_per_epoch=steps_per_epoch,
        verbose=verbose,
        console=screen,
    )
    if not chief or workdir is None:
        return reporter
    last = {"last_step": resume_step, "last_evaluated": resume_evaluated}
    _open_files(reporter, workdir, tensorboard=tensorboard, evaluates=evaluates, **last)
    return reporter


def _open_files(
    reporter: Reporter,
    workdir: str | os.PathLike[str],
    *,
    tensorboard: bool,
    evaluates: bool,
    last_step: int | None,
    last_evaluated: int | None,
) -> None:
    """Opens the files of the chief's reports, without the reports of steps after those given."""
    files.make_workdir(workdir)
    path = os.path.join(workdir, metrics_file.METRICS)
    removed = metrics_file.trim_metrics(path, last_step, last_evaluated)
    reporter.metrics = files.open_append_only(path)
    if last_step is not None:
        reporter.start(last_step)
    if tensorboard:
        folder = os.path.join(workdir, tensorboard_events.TENSORBOARD)
        reporter.tensorboard = tensorboard_events.open_event_files(
            folder, last_step, last_evaluated, evaluates=evaluates, warn=reporter.warning
        )
    if removed:
        reporter.event(f"removed {removed} lines of {path} after step {last_step}: these steps run again", last_step)


def _console(
    stream: TextIO | None, total_steps: int, steps_per_epoch: int, examples: str, evaluates: bool, verbosity: str
) -> console_lib.Console:
    return console_lib.open_console(
        stream or sys.stdout,
        total_steps=total_steps,
        epochs=total_steps / steps_per_epoch,
        examples=examples,
        evaluates=evaluates,
        verbosity=verbosity,
    )
