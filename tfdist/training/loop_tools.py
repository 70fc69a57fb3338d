"""`LoopTools`: what the loop works with, made once per start."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import directory
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.async_writer import AsyncCheckpointer
from tfdist.checkpoint.workdir_lock import WorkdirLock
from tfdist.cluster import malloc
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gpu_software
from tfdist.config import diff
from tfdist.report import lines, opening, run_info, summary
from tfdist.report.reporter import Reporter
from tfdist.training import execution, tensorboard_extras
from tfdist.training import run as run_lib
from tfdist.training.consistency import replicas, unsaved
from tfdist.training.consistency.replicas import ReplicaConsistencyCheck
from tfdist.training.execution import StepRunner
from tfdist.training.state import TrainingState
from tfdist.training.step import train_step
from tfdist.training.step.random_numbers import stateful_random
from tfdist.training.tensorboard_extras import TensorBoardExtras


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopTools:
    """The objects that the loop uses besides the state: report, checkpointer, compiled steps and checks."""

    run: run_lib.Run
    report: Reporter
    # None except on the chief.
    checkpointer: AsyncCheckpointer | None
    # None except on the chief of a run with a workdir.
    lock: WorkdirLock | None
    train_steps: StepRunner
    evaluation_steps: StepRunner
    # Returns which variable is not finite, as a sentence; "": none. The same on every worker.
    not_finite: Callable[[], str]
    consistency: ReplicaConsistencyCheck
    tensorboard: TensorBoardExtras
    # When the run was opened, as `time.monotonic`.
    started: float = dataclasses.field(default_factory=time.monotonic)


def make_tools(
    run: run_lib.Run,
    report: Reporter,
    checkpointer: AsyncCheckpointer | None,
    lock: WorkdirLock | None = None,
) -> LoopTools:
    """Makes the tools of the loop."""
    train_steps = execution.make_runner(run, stateful_random.checked(run.train_step, run.cluster, "training step"))
    train_steps.run_steps = unsaved.refuse_unsaved(run, train_steps.run_steps)
    check = finite_check(run.variables)
    return LoopTools(
        run=run,
        report=report,
        checkpointer=checkpointer,
        lock=lock,
        train_steps=train_steps,
        evaluation_steps=execution.make_runner(
            run, stateful_random.checked(train_step.evaluation_step, run.cluster, "evaluation"), updates=0
        ),
        not_finite=lambda: _on_any_worker(run.cluster, check()),
        consistency=replicas.make_check(run.cluster, run.variables, run.config.agreement, report.event),
        tensorboard=tensorboard_extras.TensorBoardExtras(run=run, report=report),
    )


def finite_check(variables: Mapping[str, Any]) -> Callable[[], str]:
    """Compiles a function that returns the name of a variable that is not finite on this worker; "": there is none.

    A variable that is infinite now, such as a mask with -inf, may stay so: only NaN counts there.
    """
    values = {name: checkpoint_format.tf_variable(variable) for name, variable in variables.items()}
    floats = {name: value for name, value in values.items() if value.dtype.is_floating}
    infinite = {name for name, value in floats.items() if tf.reduce_any(tf.math.is_inf(value))}

    @tf.function(autograph=False)
    def check() -> tf.Tensor:
        bad = [tf.math.is_nan(v) if name in infinite else ~tf.math.is_finite(v) for name, v in floats.items()]
        return tf.stack([tf.reduce_any(one) for one in bad])

    # Traced once, at its first call. TensorFlow would warn about the calls of `check` in a script with many fits.
    traced = functools.cache(check.get_concrete_function)
    return lambda: next((name for name, bad in zip(floats, traced()().numpy(), strict=True) if bad), "")


def _on_any_worker(cluster: Cluster, name: str) -> str:
    if not cluster.any_worker(bool(name)):
        return ""
    name = next(filter(None, cluster.all_gather_text(name)))
    return f"The variable {name} is not finite"


def make_silent_tools(run: run_lib.Run) -> LoopTools:
    """Makes tools that report nothing, for an evaluation whose values are returned to the caller."""
    report = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        console=None,
    )
    return make_tools(run, report, None)


def open_report(run: run_lib.Run, workdir: str | None, **resumed: int) -> Reporter:
    """Opens the report of `run`; see `opening.open_report` for `workdir` and `resumed`."""
    report = opening.open_report(
        workdir,
        chief=run.cluster.is_chief,
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        total_steps=run.total_steps,
        steps_per_epoch=run.steps_per_epoch,
        tensorboard=run.config.report.tensorboard,
        console=run.callbacks.console,
        verbose=run.config.report.verbose,
        evaluates=run.evaluation_data is not None,
        examples=run.example_name,
        **resumed,
    )
    verbose, roster = run.config.report.verbose, lines.short_roster(run.cluster.roster, run.cluster.num_workers)
    report.workers(roster, roster if verbose else malloc.without_note(roster))
    if run.preparation:
        report.event(run.preparation)
    for note in run.notes if run.cluster.is_chief else ():
        report.warning(note)
    return report


def report_start(run: run_lib.Run, report: Reporter, resumed_step: int | None) -> None:
    """Writes on the chief what is trained, to the workdir's files, TensorBoard and the log.

    Args:
        run: has a workdir.
        report: of the run.
        resumed_step: the step of the restored checkpoint; None: a new run.
    """
    if not run.cluster.is_chief:
        return
    workdir, config = str(run.workdir), run_info.to_json(run.config)
    old = run_info.read_config(workdir)
    if resumed_step is None or old != config:
        report.text(resumed_step or run.first_step, "config", _table(config))
    if old is None:  # Otherwise with the next checkpoint.
        run_info.write_config(workdir, run.config)
    described = {"workers": list(run.cluster.roster), "gpu": gpu_software.describe(os.environ)}
    report.environment(run_info.write_environment(workdir, described))
    if run.callbacks.console == "all":
        report.lines(summary.start_lines(run, resumed_step))
        if run.config.report.summary:
            # Keras calls `print_fn` with the whole text.
            run.context.model.summary(print_fn=lambda text: report.lines(text.splitlines()))


def _table(config: dict[str, Any]) -> str:
    """Returns the fields of a config as a table in Markdown."""
    rows = [f"| `{name}` | `{json.dumps(value)}` |" for name, value in diff.flatten(config)]
    return "\n".join(["| field | value |", "| --- | --- |", *(row.replace("\n", " ") for row in rows)])


def report_end(tools: LoopTools, state: TrainingState) -> None:
    """Writes the last lines of the log of a config's run, on the chief."""
    run = tools.run
    if run.callbacks.console == "all":
        seconds = time.monotonic() - tools.started
        best = {"best": state.best, "best_step": state.best_step}
        tools.report.lines(summary.end_lines(run.config, run.workdir, seconds=seconds, **best))


def describe_early_stop(run: run_lib.Run) -> str:
    """Returns, for a message, what is saved after a stop request before the first step of this start."""
    saved = "nothing to save" if run.checkpoints is None else directory.safe_state(run.checkpoints)
    return f"before the first step: {saved}"


def describe_finished(values: dict[str, Any]) -> str:
    """Returns the content of finished.json as a sentence: "Step 660, best accuracy 0.9944."."""
    values = dict(values)
    early = "; a callback stopped it" if values.pop("stopped_by_callback", False) else ""
    step, best = values.pop("step"), [f", {name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
    return f"Step {step}{''.join(best)}{early}."
