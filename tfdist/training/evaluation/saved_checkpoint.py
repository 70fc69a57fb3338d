"""`--mode=eval`: the evaluation of a saved checkpoint."""

import json

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.cluster import interruption
from tfdist.report import files
from tfdist.training import checkpointing, opening
from tfdist.training.consistency import example_search
from tfdist.training.evaluation import evaluate
from tfdist.training.execution import StopRequested
from tfdist.training.reporting import report_run
from tfdist.training.run import Run
from tfdist.training.state import TrainingState


def evaluate_only(run: Run, which: str) -> int:
    """Evaluates a checkpoint and changes nothing; returns the exit code. `which`: "newest", "best" or a step.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, the config names no evaluation split, or the data cannot
            be used (`example_search.explain_errors`).
        ReplicaMismatchError, DivergedError: as `checkpointing.check_state`.
    """
    if run.feed.evaluation is None:
        raise ValueError("--mode=eval needs a split to evaluate. Received: config.data.evaluation_split=None")
    saved = restore.find(run.cluster, lambda: checkpoint_format.find(run.checkpoints, which))
    restore.restore(run.cluster, saved, run.variables)
    report = report_run.open_report(run, None)
    report.event(f"evaluating {saved.path}")
    services = opening.make_services(run, report, None)
    checkpointing.check_state(services, TrainingState(step=saved.step))
    try:
        with example_search.explain_errors(run):
            values = evaluate.evaluate(services, saved.step, compare=False)
    except StopRequested:
        reason = run.stop.reason or "another worker"
        report.event(f"evaluation stopped by {reason}: {saved.path} is unchanged; run the same command to start again")
        return interruption.EXIT_STOPPED
    finally:
        report.close()
    if run.cluster.is_chief:
        print(
            json.dumps(
                files.nan_to_null({"step": saved.step, "num_examples": run.feed.sizes.evaluation_examples, **values})
            )
        )
    return 0
