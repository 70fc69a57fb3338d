"""Local SGD: each replica makes several optimizer steps by itself, then all average (Stich, arXiv 1805.09767).

    python -m tfdist local_sgd --config=configs/digits.py --config.data.batch_size=128 --local_steps=4

For slow networks: one communication for --local_steps optimizer steps, of the weights, the optimizer's slots and the
moving statistics. A step of the run is such a round, and `config.data.batch_size` counts the examples of a round. The
algorithm differs from summing gradients in every step, so N replicas do not give the results of one. On the same
replicas a run repeats and resumes bit for bit. Start it like tfdist.main, under any launcher.
"""

import argparse

from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.config.schema import Config


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    meaning = "Optimizer steps of a replica between two averages. Default: %(default)s."
    parser.add_argument("--local_steps", metavar="N", type=tool_flags.at_least(1), default=4, help=meaning)
    parser.add_workdir("runs/NAME-local_sgd", "Directory of the run.")


def configure(config: Config, local_steps: int) -> None:
    """Makes the schedule count optimizer steps, and the learning rate scale with the examples of one of them."""
    rate, target = config.learning_rate, "tfdist.configs.laboratory.local_sgd.rounds:schedule"
    rate.schedule = {"target": target, "of": rate.schedule, "local_steps": local_steps}
    rate.reference_batch_size *= local_steps


def train(args: argparse.Namespace) -> int:
    """Trains the run that the flags name; returns the exit code."""
    from tfdist.configs.laboratory.local_sgd import rounds
    from tfdist.training import loop, setup

    configure(args.config, args.local_steps)
    run = setup.build_run(args.config, args.workdir, config_file=args.config_file)
    run = rounds.compose(run, args.local_steps)
    code = loop.train(run)
    run.cluster.leave()
    return code


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(lambda: train(args))
