"""The first and last lines of a run's log: what is trained, on what, and where the results are."""

from pathlib import Path
from typing import Any

from tfdist.report import formats


def start_lines(run: Any, resumed_step: int | None, learning_rate: str) -> list[str]:
    """Returns the lines before the first step.

    Args:
        run: a `tfdist.training.run.Run` of a config.
        resumed_step: the step of the restored checkpoint; None: a new run.
        learning_rate: the optimizer and its learning rate in words.
    """
    config, replicas, workers = run.config, run.cluster.num_replicas, run.cluster.num_workers
    sizes = run.feed.sizes
    state = "a new run" if resumed_step is None else f"resumed after step {resumed_step}"
    evaluated = "" if sizes.evaluation_examples is None else f", {sizes.evaluation_examples:,} for evaluation"
    per_replica = f", {sizes.per_replica} per replica" if replicas > 1 else ""
    epochs = sizes.total_steps / sizes.steps_per_epoch
    parameters = run.context.model.count_params()
    name = config.model.get("name")  # Of a network of keras.applications.
    model = f"{config.model.get('target')}{f'(name={name})' if name else ''}"
    return [
        *([f"config     {run.log.config_file}"] if run.log.config_file else []),
        f"workdir    {run.workdir}, {state}",
        f"data       {sizes.training_examples or 0:,} examples for training{evaluated}",
        f"batch      {sizes.global_batch:,} examples{per_replica}; {_count(sizes.steps_per_epoch, 'step')} per epoch, "
        f"{_count(sizes.total_steps, 'step')} in {epochs:.4g} epoch{'s' * (epochs != 1)}",
        f"model      {model}, {parameters:,} parameters, {config.train.precision}",
        f"optimizer  {learning_rate}",
        f"devices    {replicas} replica{'s' * (replicas > 1)}{f' in {workers} workers' if workers > 1 else ''}",
    ]


def end_lines(config: Any, workdir: Path, *, seconds: float, best: float | None, best_step: int) -> list[str]:
    """Returns the lines after the end of a run.

    Args:
        config: the `tfdist.config.Config` of the run.
        workdir: of the run.
        seconds: since its start, or since it was resumed.
        best: the best value of `config.checkpoint.best_metric`; None: no evaluation, or not set.
        best_step: its step.
    """
    lines = [f"time       {formats.duration(seconds)} for training in this start"]
    if best is not None:
        lines.append(f"best       {config.checkpoint.best_metric} {formats.number(best)} at step {best_step}")
    exported = "model.keras, " if config.checkpoint.export else ""
    lines.append(f"results    {workdir}: {exported}metrics.jsonl, checkpoints")
    if config.data.evaluation_split is not None:
        # `tfdist asynchronous` has no --mode.
        other = "python -m tfdist.main, with the same config and workdir, and"
        command = other if config.train.asynchronous else "the same command with"
        lines.append(f"evaluate   {command} --mode=eval{'' if best is None else ' --checkpoint=best'}")
    if config.report.tensorboard:
        lines.append(f"curves     tensorboard --logdir {workdir / 'tensorboard'}")
    return lines


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
