"""Predicts the time to a target, such as an accuracy, for several batches, from the noise scale. No TensorFlow.

A run with the global batch B needs S_min (1 + B_noise / B) steps to its target (McCandlish et al., arXiv 1812.06162,
equation 2.11), if each batch has its best learning rate. S_min is the number of steps with a very large batch. With
B = B_noise, a run needs twice as many, and twice the examples of one with a very small batch.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.report import run_info
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import run_state
from tfdist.tools.scaling_results import Point


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A run that reached its target."""

    steps: int
    batch_size: int
    # Of the whole run, in examples; see `average`.
    noise_scale: float


def means(lines: Sequence[Mapping[str, Any]], average_steps: int) -> list[tuple[float, float]]:
    """Returns the means of |G|^2 and of tr(Sigma) in the interval of each report, without the steps before it.

    The reports have averages over about `average_steps` steps, `config.report.noise_scale`. While the gradient falls by
    powers of ten, these are those of long ago, so what was in the average at the report before is subtracted.
    """
    decay, count, before, found = 1.0 - 1.0 / average_steps, 0, (0.0, 0.0), []
    for line in lines:
        square, variance = line.get("gradient_square"), line.get("gradient_variance")
        if square is None or variance is None:
            continue
        count += line["steps"]
        kept, whole = decay ** line["steps"], 1.0 - decay**count
        now = (square * whole, variance * whole)
        first, second = ((new - kept * old) / (1.0 - kept) for new, old in zip(now, before, strict=True))
        found.append((first, second))
        before = now
    return found


def average(parts: Sequence[tuple[float, float]], batch_size: float) -> float:
    """Returns the mean noise scale over a run, for predictions with other batches; inf: larger than it can tell.

    A step at a noise scale N makes as much progress as 1 / (1 + N / B) steps without noise (section 2.2 of the paper).
    Weighted by this progress, the mean gives the sum over the steps of (1 + N / B') / (1 + N / B) as the predicted
    steps with a batch B'. `parts` are of `means`, at equal intervals of steps; B is `batch_size`.
    """
    norms = [square + variance / batch_size for square, variance in parts]
    noise = sum(variance / norm for (_, variance), norm in zip(parts, norms, strict=True))
    progress = sum(square / norm for (square, _), norm in zip(parts, norms, strict=True))
    return noise / progress if progress > 0 else math.inf


def read(workdir: Path) -> Reached:
    """Reads a run that ended at its target; raises ValueError if it has not, or has no reports of a noise scale."""
    lines, config = child_runs.reports(workdir), run_info.read_config(workdir)
    steps = None if config is None else config.get("report", {}).get("noise_scale")
    parts = means(lines, steps) if steps else []
    if not parts:
        raise ValueError(
            f"--target_run={workdir} has no reports of a noise scale: train it with config.report.noise_scale=100 on "
            "two replicas, or with config.train.micro_batches=2."
        )
    state = run_state.read(workdir).state
    if state != "finished":
        raise ValueError(
            f"--target_run={workdir}: the run is {state} after step {lines[-1]['step']}, so it has not ended at a "
            "target. Resume it by the command that trained it, or name a finished run."
        )
    batch = config["data"]["batch_size"]
    return Reached(steps=lines[-1]["step"], batch_size=batch, noise_scale=average(parts, batch))


def steps_to_target(noise_scale: float, batch_size: float, *, measured_steps: float, measured_batch: float) -> float:
    """Returns the predicted steps to a target with a batch, given `measured_steps` with `measured_batch` examples.

    With an infinite noise scale, steps are inverse to the batch.
    """
    if math.isinf(noise_scale):
        return measured_steps * measured_batch / batch_size
    return measured_steps * (1 + noise_scale / batch_size) / (1 + noise_scale / measured_batch)


def measured_noise_scale(points: Sequence[Point]) -> float | None:
    """Returns the median of the noise scales that the trainings have measured; None: no training has measured one."""
    found = [point.noise_scale for point in points if point.noise_scale is not None]
    return statistics.median(found) if found else None


def predict(points: Sequence[Point], noise_scale: float, reached: Reached | None) -> list[float]:
    """Returns the steps of each point to the target; relative to the first if no run has reached it."""
    steps, batch = (1.0, points[0].batch_size) if reached is None else (reached.steps, reached.batch_size)
    measured = {"measured_steps": steps, "measured_batch": batch}
    return [steps_to_target(noise_scale, point.batch_size, **measured) for point in points]


def describe(points: Sequence[Point], noise_scale: float | None, reached: Reached | None) -> str:
    """Returns the noise scale (None: that of `reached`, or of the points) in words, and the table of predictions."""
    if noise_scale is None:
        noise_scale = measured_noise_scale(points) if reached is None else reached.noise_scale
    if noise_scale is None:
        return (
            "The noise scale was not measured, so the time to a target is not predicted: it needs a training on two "
            "replicas or with config.train.micro_batches, or set --noise_scale (docs/noise-scale.md)."
        )
    unit = "relative" if reached is None else "predicted"
    shown_time = "time to target, relative" if reached is None else "s to target, predicted"
    header = ("replicas", "batch", "s per step", f"steps to target, {unit}", shown_time, "times as fast")
    steps = predict(points, noise_scale, reached)
    seconds = [count * point.step_seconds for count, point in zip(steps, points, strict=True)]
    unit_seconds = seconds[0] if reached is None else 1.0
    rows = [
        (point.replicas, point.batch_size, point.step_seconds, count, time / unit_seconds, seconds[0] / time)
        for point, count, time in zip(points, steps, seconds, strict=True)
    ]
    soonest = points[seconds.index(min(seconds))]
    times = f", {tables.format_value(seconds[0] / min(seconds))} times as fast as {points[0].replicas}"
    size = f"{tables.format_value(float(noise_scale))} examples"
    size = "larger than was measured" if math.isinf(noise_scale) else size
    return (
        f"Noise scale: {size}. Far below it, twice the global batch needs half the steps to a target; far above it, "
        "steps hardly fall further.\n"
        f"{tables.text(header, rows)}\n"
        f"Soonest at a target: {soonest.replicas} replica{'s' * (soonest.replicas > 1)}"
        f"{times * (soonest is not points[0])}. "
        "docs/noise-scale.md says how far measured steps were from such predictions."
    )
