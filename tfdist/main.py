"""Trains or evaluates the model of a config, for example: python -m tfdist.main --config=configs/digits.py

Exit codes: 0 finished; 1 error, with a message; 75 stopped by a signal or time limit and saved (run the same command to
resume); 76 another worker was lost (restart all workers); 77 replicas hold different states, or workers read different
data.
"""

import argparse
import os
import sys

from absl import app

from tfdist.cluster import process_exit
from tfdist.cluster.devices import onednn
from tfdist.config import closed_streams, tensorflow_log, tool_flags
from tfdist.training import features


def train_or_evaluate(args: argparse.Namespace) -> int:
    """Runs the training or evaluation that the flags request; returns the exit code."""
    from tfdist.training import loop, setup

    trains = args.mode == "train"
    experiment_run = setup.build_run(args.config, args.workdir, config_file=args.config_file, trains=trains)
    if trains:
        allowed = {name: getattr(args, name) for name in ("allow_config_changes", "allow_data_changes")}
        code = loop.train(experiment_run, **allowed)
    else:
        from tfdist.training.evaluation import saved_checkpoint

        code = saved_checkpoint.evaluate_only(experiment_run, args.checkpoint)
    experiment_run.cluster.leave()
    return code


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    try:
        features.validate_config(args.config)  # Before TensorFlow is imported, so that errors appear at once.
    except ValueError as error:
        sys.exit(f"tfdist: {error}")
    tensorflow_log.announce()
    process_exit.run_and_exit(lambda: train_or_evaluate(args))


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the command line. Chooses oneDNN or not before the config file runs, because it may import TensorFlow."""
    parser = tool_flags.Parser("python -m tfdist.main", __doc__)
    parser.add_run_flags()
    parser.usage = "python -m tfdist.main --config=FILE [flags]"
    return parser.read(argv[1:], lambda args: onednn.choose(os.environ, args.workdir))


if __name__ == "__main__":
    closed_streams.reopen()
    app.run(main, flags_parser=parse)
