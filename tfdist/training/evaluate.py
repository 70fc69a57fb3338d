"""The evaluation beside the loop: each example of the split once, on any number of replicas."""

import json
import math
import sys
import time

from tfdist import config as config_lib
from tfdist.checkpoint import directory
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.training import checkpointing, state, triggers
from tfdist.training import run as run_lib
from tfdist.training.state import LoopTools
from tfdist.training.step import multi_step


def values(run: run_lib.Run, sums: dict[str, float]) -> dict[str, float]:
    """Returns what `sums` over examples come to; every worker must call it, as metrics are read."""
    return multi_step.means(run.trainer, sums) if run.compiled is None else run.compiled.results(sums)


def evaluation_is_due(run: run_lib.Run, now: int) -> bool:
    """Whether an evaluation belongs after step `now`."""
    if run.evaluation_data is None:
        return False
    if run.compiled is not None and state.ends(run, now):  # As Keras does: by epochs, and one that is cut short counts.
        now = math.ceil(now / run.steps_per_epoch) * run.steps_per_epoch
    elif state.ends(run, now):
        return True
    return triggers.is_due(run.config.evaluation.every, now, run.steps_per_epoch)


def evaluate(loop: LoopTools, now: int, best: float | None = None) -> dict[str, float] | None:
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
    run.callbacks.call("on_test_begin")
    done = 0
    while done < steps:
        most = steps - done
        if "test" in run.callbacks.batch_interval:
            most = min(most, run.callbacks.batch_interval["test"] - done % run.callbacks.batch_interval["test"])
        if run.callbacks.begins_batch("test", done):
            run.callbacks.call("on_test_batch_begin", done)
        taken, totals = loop.evaluation_call(iterator, most)
        done += taken
        run.cluster.heartbeat(now)
        sums = {name: sums.get(name, 0.0) + value for name, value in totals.items()}
        if totals["stop"] > 0 and done < steps:
            return None
        if run.callbacks.ends_batch("test", done - 1, steps):
            last = run.callbacks.last_of_batch("test", done - 1)
            run.callbacks.call("on_test_batch_end", last, values(run, sums))
        if run.callbacks.wants_progress("test"):
            run.callbacks.progress(done, values(run, sums))
        loop.report.progress(now, "evaluating")
    evaluated = values(run, sums)
    run.callbacks.call("on_test_end", logs=evaluated)
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


def evaluate_only(run: run_lib.Run, which: str) -> int:
    """Evaluates one checkpoint, changing nothing in the workdir.

    Args:
        which: "newest", "best", or a step.

    Raises:
        ValueError: there is no such checkpoint, or it is damaged, or the config names no evaluation split.
    """
    if run.evaluation_data is None:
        raise ValueError("--mode=eval needs a split to evaluate. Received: config.data.evaluation_split=None")
    chosen = 0
    if run.cluster.is_chief:
        chosen = checkpoint_format.find(
            run.checkpoints, which, lambda text: print(f"tfdist: {text}", file=sys.stderr)
        ).step
    chosen = run.cluster.broadcast(chosen)
    saved = checkpoint_format.verify(directory.step_path(run.checkpoints, chosen))
    checkpoint_format.restore(saved, run.variables)
    reporter = checkpointing.open_reporter(run, None)
    reporter.event(f"evaluating {saved.path}")
    loop = checkpointing.make_loop(run, reporter, None)
    loop.agreement.check(saved.step)
    values = evaluate(loop, saved.step)
    reporter.close()
    if values is None:
        return interruption.EXIT_STOPPED
    if run.cluster.is_chief:
        print(json.dumps({"step": saved.step, "num_examples": run.evaluation_examples, **values}))
    return 0
