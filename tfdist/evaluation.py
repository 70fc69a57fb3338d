"""The evaluation beside the loop: each example of the split once, on any number of replicas."""

import math
import time

from tfdist import config as config_lib
from tfdist import experiment, intervals, step
from tfdist import loop as loop_lib
from tfdist.loop import Loop


def values(run: experiment.Run, sums: dict[str, float]) -> dict[str, float]:
    """Returns what `sums` over examples come to; every worker must call it, as metrics are read."""
    return step.means(run.trainer, sums) if run.compiled is None else run.compiled.results(sums)


def evaluation_is_due(run: experiment.Run, now: int) -> bool:
    """Whether an evaluation belongs after step `now`."""
    if run.evaluation_data is None:
        return False
    if run.compiled is not None and loop_lib.ends(
        run, now
    ):  # As Keras does: by epochs, and one that is cut short counts.
        now = math.ceil(now / run.steps_per_epoch) * run.steps_per_epoch
    elif loop_lib.ends(run, now):
        return True
    return intervals.is_due(run.config.evaluation.every, now, run.steps_per_epoch)


def evaluate(loop: Loop, now: int, best: float | None = None) -> dict[str, float] | None:
    """Evaluates the whole split, each example once, and reports it, next to the `best` value so far.

    Returns:
        The means over all examples, or None where the workers agreed to stop before the end.
    """
    run, started = loop.run, time.perf_counter()
    dataset, steps = run.evaluation_data()
    iterator = run.cluster.distribute(dataset)
    sums: dict[str, float] = {}
    if run.compiled is not None:
        run.compiled.reset()
    run.hooks.test_begin()
    done = 0
    while done < steps:
        most = steps - done
        if "test" in run.hooks.each_steps:
            most = min(most, run.hooks.each_steps["test"] - done % run.hooks.each_steps["test"])
        if run.hooks.begins_batch("test", done):
            run.hooks.test_batch_begin(done)
        taken, totals = loop.evaluation_call(iterator, most)
        done += taken
        run.cluster.progress(now)
        sums = {name: sums.get(name, 0.0) + value for name, value in totals.items()}
        if totals["stop"] > 0 and done < steps:
            return None
        if run.hooks.ends_batch("test", done - 1, steps):
            run.hooks.test_batch_end(run.hooks.last_of_batch("test", done - 1), values(run, sums))
        if run.hooks.shows("test"):
            run.hooks.progress(done, values(run, sums))
        loop.report.progress(now, "evaluating")
    evaluated = values(run, sums)
    run.hooks.test_end(evaluated)
    num_examples = round(sums["examples"])
    assert run.evaluation_examples in (None, num_examples)
    evaluated.pop("regularization", None)
    seconds = time.perf_counter() - started
    improved = is_best(run.config.checkpoint, evaluated, best)
    loop.report.evaluation(now, evaluated, seconds=seconds, num_examples=num_examples, best=improved)
    return evaluated


def is_best(options: config_lib.Checkpoint, values: dict[str, float], best: float | None) -> bool:
    """Whether these are the best evaluation values so far; never where no metric decides."""
    if options.best_metric is None or not math.isfinite(values[options.best_metric]):
        return False
    value = values[options.best_metric]
    return best is None or (value > best if options.best_mode == "max" else value < best)
