"""Trains or evaluates what a config describes: `python -m tfdist.main --config=configs/digits.py`.

It ends with 0 when the run is finished, 75 when it was asked to stop and has saved (start it again to go on), 76 when
another worker was lost (start all again), 1 when something is wrong, which it says.
"""

import os
from pathlib import Path

from absl import app, flags

from tfdist.cluster import malloc, process_exit
from tfdist.config import flags as config_flags

_CONFIG = config_flags.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the run lives. Default: runs/NAME for a config file NAME.py.")
_MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train, or evaluate a checkpoint of the workdir.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", "newest", 'What to evaluate: "newest", "best", or a step.')
_ALLOW_CONFIG_CHANGES = flags.DEFINE_bool(
    "allow_config_changes", False, "Go on with the run in the workdir although its config was another."
)


def run() -> int:
    """Runs what the flags say; returns the exit code."""
    from tfdist.cluster import cluster
    from tfdist.training import evaluate, loop, setup

    workdir = Path(_WORKDIR.value or f"runs/{config_flags.config_name()}").expanduser()
    if _CONFIG.value.train.asynchronous and _MODE.value == "train":
        from tfdist.tools.parameter_server import coordinator

        allow = _ALLOW_CONFIG_CHANGES.value
        return coordinator.run_asynchronously(_CONFIG.value, workdir, allow_config_changes=allow)
    experiment_run = setup.build_run(_CONFIG.value, workdir)
    if _MODE.value == "train":
        code = loop.train(experiment_run, allow_config_changes=_ALLOW_CONFIG_CHANGES.value)
    else:
        code = evaluate.evaluate_only(experiment_run, _CHECKPOINT.value)
    cluster.leave(experiment_run.cluster)
    return code


def main(argv: list[str]) -> None:
    """Runs what the flags say, and ends the process."""
    malloc.keep_freed(_CONFIG.value.cluster, os.environ)  # Before TensorFlow is imported and allocates.
    process_exit.run_and_exit(run)


if __name__ == "__main__":
    app.run(main, flags_parser=config_flags.parse)
