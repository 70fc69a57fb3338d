"""Opens the report of a run, and writes its first and last lines."""

import math
import os
import shlex
import sys
from typing import Any

import tensorflow as tf

from tfdist.cluster import numerics
from tfdist.cluster.devices import gpu_software, machine, onednn
from tfdist.config import diff, saved_run, user_code
from tfdist.report import files, lines, run_info
from tfdist.report.console import Console
from tfdist.report.ledger import Ledger
from tfdist.report.reporter import Reporter
from tfdist.training.reporting import first_batch
from tfdist.training.run import Run
from tfdist.training.state import TrainingState
from tfdist.training.step import learning_rate
from tfdist.training.step.layers import model_layers

# What the numbers of an example mean: class names, columns; see `tfdist.data.description.to_save`.
DATA = "data.json"


def make_report(run: Run, console: Console | None) -> Reporter:
    """Makes the report of `run` without files; `console` None: a silent one, or that of another worker."""
    cluster = run.cluster
    return Reporter(
        rank=cluster.rank, num_replicas=cluster.num_replicas, steps_per_epoch=run.steps_per_epoch, console=console
    )


def open_report(run: Run, workdir: str | None, **resumed: int) -> Reporter:
    """Opens the report of `run`; see `Reporter.open_files` for `workdir` and `resumed`."""
    epochs = run.total_steps / run.steps_per_epoch
    screen = Console(stream=sys.stdout, total_steps=run.total_steps, epochs=epochs, verbosity=run.log.console)
    report = make_report(run, screen if run.cluster.is_chief else None)
    tensorboard, evaluates = run.config.report.tensorboard, run.feed.evaluation is not None
    report.open_files(workdir, tensorboard=tensorboard, evaluates=evaluates, **resumed)
    roster = run.cluster.roster
    report.workers(roster.short_lines(verbose=True), roster.short_lines(verbose=False))
    if run.feed.preparation:
        report.event(run.feed.preparation)
    for note in run.log.notes if run.cluster.is_chief else ():
        report.warning(note)
    return report


def write_start(run: Run, report: Reporter, resumed_step: int | None) -> None:
    """On the chief, records in workdir, TensorBoard and log what is trained; `resumed_step` None: a new run."""
    if not run.cluster.is_chief:
        return
    workdir, config = str(run.workdir), diff.to_json(run.config)
    report.hyperparameters({name: value for name, value in diff.flatten(config) if diff.affects_weights(name)})
    run_info.write_config(workdir, config)
    if run.feed.saved:
        files.write_json(os.path.join(workdir, DATA), run.feed.saved)
    described = {"code": user_code.hashes(), "settings": numerics.settings(os.environ)}
    if resumed_step is not None:
        before = files.read_json(os.path.join(workdir, run_info.ENVIRONMENT)) or {}
        changed = [name for part, new in described.items() for name in numerics.differing(before.get(part, {}), new)]
        if changed:
            report.warning(f"WARNING: changed since this run's last start: {', '.join(changed)}.")
    described |= {"workers": run.cluster.roster.lines(), "gpu": gpu_software.describe(os.environ)}
    described[onednn.ENTRY] = {"enabled": onednn.enabled()}
    described["processor"] = onednn.read_processor().name
    described["threads"] = {
        "cores": machine.num_cores(),
        # 0: as many as cores.
        "in an op": tf.config.threading.get_intra_op_parallelism_threads()
        or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0),
        "between ops": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    described["replicas"] = {"all": run.cluster.num_replicas, "workers": run.cluster.num_workers}
    described["config"], described["config_file"] = config, saved_run.first_config(run.log.config_file)
    report.environment(run_info.write_environment(workdir, described))
    if run.log.console == "all":
        report.lines(start_lines(run, resumed_step))
        if run.config.report.summary:
            # Keras calls `print_fn` with the whole text.
            run.context.model.summary(print_fn=lambda text: report.lines(text.splitlines()))
    if resumed_step is None:
        first_batch.report(run, report)


def start_lines(run: Run, resumed_step: int | None) -> list[str]:
    """Returns the lines before the first step of a config's run; `resumed_step`: see `write_start`."""
    config, sizes, replicas, workers = run.config, run.feed.sizes, run.cluster.num_replicas, run.cluster.num_workers
    state = "a new run" if resumed_step is None else f"resumed after step {resumed_step}"
    evaluated = "" if sizes.evaluation_examples is None else f", {sizes.evaluation_examples:,} for evaluation"
    per_replica = f", {sizes.per_replica} per replica" if replicas > 1 else ""
    epochs = sizes.total_steps / sizes.steps_per_epoch
    name = config.model.get("name")  # The name of a network of keras.applications.
    model, network = f"{config.model.get('target')}{f'(name={name})' if name else ''}", run.context.model
    parameters = f"{network.count_params():,} parameters"
    if any(not layer.trainable and layer.weights for layer in model_layers.all_layers(network)):
        trained = sum(math.prod(variable.shape) for variable in network.trainable_variables)
        parameters += f" ({trained:,} trained)"  # Some layers are frozen.
    return [
        *([f"config     {run.log.config_file}"] if run.log.config_file else []),
        f"workdir    {run.workdir}, {state}",
        f"data       {sizes.training_examples or 0:,} examples for training{evaluated}",
        f"batch      {sizes.global_batch:,} examples{per_replica}; {lines.count(sizes.steps_per_epoch, 'step')} per "
        f"epoch, {lines.count(sizes.total_steps, 'step')} in {lines.epochs(epochs)} epoch{'s' * (epochs != 1)}",
        f"model      {model}, {parameters}, {config.train.precision}",
        f"optimizer  {learning_rate.describe(config)}",
        f"devices    {replicas} replica{'s' * (replicas > 1)}{f' in {workers} workers' if workers > 1 else ''}",
        *run.log.chosen,
        f"values     training{'' if run.feed.evaluation is None else '/evaluation'}, speed in examples/s",
    ]


def write_end(run: Run, report: Reporter, state: TrainingState, ledger: Ledger) -> None:
    """Writes the last lines of the log of a config's run, on the chief."""
    if run.log.console != "all":
        return
    config, best = run.config, state.best
    written = [f"time       {lines.duration(ledger.seconds())} in this start"]
    if best.value is not None:
        written.append(f"best       {config.checkpoint.best_metric} {lines.number(best.value)} at step {best.step}")
    exported = "model.keras, " if config.checkpoint.export else ""
    written.append(f"results    {run.workdir}: {exported}metrics.jsonl, checkpoints")
    if config.data.evaluation_split is not None:
        which = "" if best.value is None else " --checkpoint=best"
        written.append(f"evaluate   tfdist evaluate {shlex.quote(str(run.workdir))}{which}")
    if config.report.tensorboard:
        written.append(f"curves     tensorboard --logdir {shlex.quote(str(run.workdir / 'tensorboard'))}")
    report.lines(written)


def describe_finished(values: dict[str, Any]) -> str:
    """Returns the content of finished.json as a sentence: "Step 660, best accuracy 0.9944."."""
    values = dict(values)
    early = "; a callback stopped it" if values.pop("stopped_by_callback", False) else ""
    step, best = values.pop("step"), [f", {name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
    return f"Step {step}{''.join(best)}{early}."
