"""Local SGD: each replica makes several optimizer steps by itself, then all average (Stich, arXiv 1805.09767).

    python -m tfdist local_sgd --config=configs/digits.py --config.data.batch_size=128 --local_steps=4

For slow networks: one communication for --local_steps optimizer steps, of the weights, the optimizer's slots and the
moving statistics. A step of the run is such a round, and `config.data.batch_size` counts the examples of a round. This
is another algorithm than summing gradients in every step, so N replicas do not make the run of one. On the same
replicas a run repeats and resumes bit for bit. Start it like tfdist.main, under any launcher.
"""

from pathlib import Path

from absl import flags

from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config.schema import Config


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_integer("local_steps", 4, "Optimizer steps of a replica between two averages.", lower_bound=1)
    flags.DEFINE_string("workdir", None, "Directory of the run. Default: runs/NAME-local_sgd.")


def configure(config: Config, local_steps: int) -> None:
    """Makes schedule and scaling of the learning rate count optimizer steps, and the examples of one."""
    rate, target = config.learning_rate, "tfdist.configs.laboratory.local_sgd.rounds:schedule"
    rate.schedule = {"target": target, "of": rate.schedule, "local_steps": local_steps}
    rate.reference_batch_size *= local_steps


def train() -> int:
    """Trains the run that the flags name; returns the exit code."""
    from tfdist.configs.laboratory.local_sgd import rounds
    from tfdist.training import loop, setup

    config, local_steps = flags.FLAGS["config"].value, flags.FLAGS.local_steps
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-local_sgd").expanduser()
    configure(config, local_steps)
    run = rounds.compose(setup.build_run(config, workdir, config_file=config_flags.config_file()), local_steps)
    code = loop.train(run)
    run.cluster.leave()
    return code


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(train)
