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
    global_batch: int,
    tensorboard: bool = True,
    console: str = "all",
    verbose: bool = False,
    evaluates: bool = True,
    resume_step: int | None = None,
    resume_evaluated: int | None = None,
    stream: TextIO | None = None,
) -> Reporter:
    """Opens the outputs of a run.

    Args:
        workdir: the directory of metrics.jsonl and tensorboard/; None: console only.
        chief: True on the worker that reports.
        rank: the rank of this worker.
        num_replicas: replicas on all workers.
        total_steps: optimizer steps of the run.
        steps_per_epoch: optimizer steps per epoch.
        global_batch: examples per optimizer step, over all replicas.
        tensorboard: write scalars to workdir/tensorboard.
        console: "all", "events" (no interval and evaluation lines) or "nothing".
        verbose: two lines per report.
        evaluates: whether evaluations are expected.
        resume_step: the step of the restored checkpoint, 0 for a new run; reports of later steps are removed. None:
            nothing is removed, for a run that does not train.
        resume_evaluated: its last evaluated step; None: `resume_step`.
        stream: the console; None: standard output.

    Raises:
        OSError: the workdir cannot be written.
    """
    reporter = Reporter(
        rank=rank,
        num_replicas=num_replicas,
        steps_per_epoch=steps_per_epoch,
        global_batch=global_batch,
        verbose=verbose,
        console=_console(stream, total_steps, steps_per_epoch, evaluates, console) if chief else None,
    )
    if not chief or workdir is None:
        return reporter
    files.make_workdir(workdir)
    path = os.path.join(workdir, metrics_file.METRICS)
    removed = metrics_file.trim_metrics(path, resume_step, resume_evaluated)
    reporter.metrics = files.open_append_only(path)
    if tensorboard:
        folder = os.path.join(workdir, tensorboard_events.TENSORBOARD)
        reporter.tensorboard = tensorboard_events.open_event_file(folder, resume_step)
    if removed:
        text = f"removed {removed} lines of {path} after step {resume_step}: these steps run again"
        reporter.event(text, resume_step)
    return reporter


def _console(
    stream: TextIO | None, total_steps: int, steps_per_epoch: int, evaluates: bool, verbosity: str
) -> console_lib.Console:
    return console_lib.open_console(
        stream or sys.stdout,
        total_steps=total_steps,
        epochs=total_steps / steps_per_epoch,
        evaluates=evaluates,
        verbosity=verbosity,
    )
