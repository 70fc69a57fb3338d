"""Trains or evaluates what a config describes: `python -m tfdist.main --config=configs/digits.py`.

It ends with 0 when the run is finished, 75 when it was asked to stop and has saved (start it again to go on), 76 when
another worker was lost (start all again), 1 when something is wrong, which it says.
"""

import os
import sys
from pathlib import Path

from absl import app, flags

from tfdist.cluster import malloc, process_exit
from tfdist.config import flags as config_flags


def run() -> int:
    """Runs what the flags say; returns the exit code."""
    from tfdist.cluster import cluster
    from tfdist.training import evaluate, loop, setup

    config = flags.FLAGS["config"].value
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    experiment_run = setup.build_run(config, workdir)
    if flags.FLAGS.mode == "train":
        code = loop.train(experiment_run, allow_config_changes=flags.FLAGS.allow_config_changes)
    else:
        code = evaluate.evaluate_only(experiment_run, flags.FLAGS.checkpoint)
    cluster.leave(experiment_run.cluster)
    return code


def main(argv: list[str]) -> None:
    """Runs what the flags say, and ends the process."""
    config = flags.FLAGS["config"].value
    if config.train.asynchronous and flags.FLAGS.mode == "train":
        sys.exit(
            "tfdist: config.train.asynchronous=True trains with parameter servers, which this command does not start. "
            "Run python -m tfdist asynchronous --config=..., or set config.train.asynchronous=false."
        )
    malloc.keep_freed(config.cluster, os.environ)  # Before TensorFlow is imported and allocates.
    process_exit.run_and_exit(run)


if __name__ == "__main__":
    config_flags.define_run_flags()
    app.run(main, flags_parser=config_flags.parse)
