"""Evaluation: each example of the split once, on any number of replicas."""

import functools
import math
import time

from tfdist import config as config_lib
from tfdist.training.execution import StopRequested
from tfdist.training.loop_services import LoopServices
from tfdist.training.run import Run
from tfdist.training.state import add_totals


def is_due(run: Run, step: int) -> bool:
    """Returns whether the run is evaluated after `step`."""
    if run.feed.evaluation is None:
        return False
    if run.is_script and run.ends_at(step):  # As in Keras, an epoch that was cut short counts.
        step = math.ceil(step / run.steps_per_epoch) * run.steps_per_epoch
    elif run.ends_at(step):
        return True
    return run.due(run.config.evaluation.every).is_due(step)


def evaluate(services: LoopServices, step: int, best: float | None = None, *, compare: bool = True) -> dict[str, float]:
    """Evaluates the whole split after `step`, and reports the values.

    Args:
        best: the best value of `config.checkpoint.best_metric` so far; None: there is none.
        compare: whether to compare the new values with `best`, so that the report marks a new best value.

    Returns:
        The means over all examples, by name.

    Raises:
        StopRequested: all workers agreed to stop before the end of the split.
    """
    run, hooks = services.run, services.run.hooks
    with run.evaluated_weights():
        started = time.perf_counter()
        with run.cluster.monitor.pause_timers():  # It may read the whole split, to keep it for later.
            found = run.stop.unless_stopped(run.feed.evaluation)
        if run.cluster.any_worker(found is None):
            raise StopRequested
        dataset, steps = found
        batches = run.cluster.distribute(dataset)
        run.objective.reset()
        hooks.call("on_test_begin")
        totals: dict[str, float] = {}
        done = 0
        while done < steps and not (done and hooks.ends("test", done)):
            hooks.before_steps("test", done)
            until_hook = hooks.steps_to_hook("test", done)
            max_steps = steps - done if until_hook is None else min(steps - done, until_hook)
            execution = services.evaluation_runner.execute(batches, max_steps, done)
            done += execution.steps
            run.cluster.monitor.note_progress(step)
            totals = add_totals(totals, execution.totals)
            if execution.stop_requested and done < steps:
                raise StopRequested
            hooks.after_steps("test", done - 1, steps, functools.partial(run.objective.results, totals))
            services.report.progress(step, "evaluating")
        if done == steps:
            run.feed.end_evaluation()
        values = run.objective.epoch_logs(run.objective.results(totals))
        hooks.call("on_test_end", logs=values)
        num_examples = round(totals["examples"])
        expected = run.feed.sizes.evaluation_examples
        if done == steps and expected not in (None, num_examples):
            raise RuntimeError(
                f"{num_examples} of {expected} examples were evaluated: a bug in tfdist, or in the data source"
            )
        values.pop("regularization", None)
        improved = compare and is_best(run.config.checkpoint, values, best)
        seconds = time.perf_counter() - started
        services.report.evaluation(step, values, seconds=seconds, num_examples=num_examples, best=improved)
        return values


def is_best(options: config_lib.Checkpoint, values: dict[str, float], best: float | None) -> bool:
    """Returns whether these are the best evaluation values so far; False if `best_metric` is not set."""
    if options.best_metric is None or not math.isfinite(values[options.best_metric]):
        return False
    value = values[options.best_metric]
    return best is None or (value > best if options.best_mode == "max" else value < best)
