"""Opens the report of a run, and writes its first and last lines."""

import dataclasses
import json
import os
import time
from typing import Any

from tfdist.checkpoint import directory
from tfdist.cluster.devices import gpu_software, onednn
from tfdist.config import diff, learning_rate
from tfdist.report import files, opening, run_info, summary
from tfdist.report.reporter import Reporter
from tfdist.training.run import Run
from tfdist.training.state import TrainingState

# What the numbers of an example mean: class names, columns; see `tfdist.data.description.saved`.
DATA = "data.json"


def open_report(run: Run, workdir: str | None, **resumed: int) -> Reporter:
    """Opens the report of `run`; see `opening.open_report` for `workdir` and `resumed`."""
    report = opening.open_report(
        workdir,
        chief=run.cluster.is_chief,
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        total_steps=run.total_steps,
        steps_per_epoch=run.steps_per_epoch,
        tensorboard=run.config.report.tensorboard,
        console=run.log.console,
        verbose=run.config.report.verbose,
        evaluates=run.feed.evaluation is not None,
        examples=run.feed.about.example_name,
        **resumed,
    )
    roster = run.cluster.roster
    report.workers(roster.short_lines(verbose=True), roster.short_lines(verbose=run.config.report.verbose))
    if run.feed.about.preparation:
        report.event(run.feed.about.preparation)
    for note in run.log.notes if run.cluster.is_chief else ():
        report.warning(note)
    return report


def write_start(run: Run, report: Reporter, resumed_step: int | None) -> None:
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
        report.text(resumed_step or run.feed.sizes.first_step, "config", _table(config))
    if old is None:  # Otherwise with the next checkpoint.
        run_info.write_config(workdir, run.config)
    if run.feed.about.saved:
        files.write_json(os.path.join(workdir, DATA), run.feed.about.saved)
    described = {"workers": run.cluster.roster.lines(), "gpu": gpu_software.describe(os.environ)}
    described[onednn.ENTRY] = dataclasses.asdict(onednn.current(os.environ))
    report.environment(run_info.write_environment(workdir, described))
    if run.log.console == "all":
        report.lines(summary.start_lines(run, resumed_step, learning_rate.describe(run.config)))
        if run.config.report.summary:
            # Keras calls `print_fn` with the whole text.
            run.context.model.summary(print_fn=lambda text: report.lines(text.splitlines()))


def _table(config: dict[str, Any]) -> str:
    """Returns the fields of a config as a table in Markdown."""
    rows = [f"| `{name}` | `{json.dumps(value)}` |" for name, value in diff.flatten(config)]
    return "\n".join(["| field | value |", "| --- | --- |", *(row.replace("\n", " ") for row in rows)])


def write_end(run: Run, report: Reporter, state: TrainingState, started: float) -> None:
    """Writes the last lines of the log of a config's run, on the chief; `started`: when, as `time.monotonic`."""
    if run.log.console == "all":
        seconds = time.monotonic() - started
        best = {"best": state.best.value, "best_step": state.best.step}
        report.lines(summary.end_lines(run.config, run.workdir, seconds=seconds, **best))


def describe_early_stop(run: Run) -> str:
    """Returns, for a message, what is saved after a stop request before the first step of this start."""
    saved = "nothing to save" if run.checkpoints is None else directory.safe_state(run.checkpoints)
    return f"before the first step: {saved}"


def describe_finished(values: dict[str, Any]) -> str:
    """Returns the content of finished.json as a sentence: "Step 660, best accuracy 0.9944."."""
    values = dict(values)
    early = "; a callback stopped it" if values.pop("stopped_by_callback", False) else ""
    step, best = values.pop("step"), [f", {name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
    return f"Step {step}{''.join(best)}{early}."
