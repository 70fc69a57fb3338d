"""Trains or evaluates the model of a config, for example: python -m tfdist.main --config=configs/digits.py

Exit codes: 0 finished; 1 error, with a message; 75 stopped by a signal or time limit and saved (run the same command to
resume); 76 another worker was lost (restart all workers); 77 replicas hold different states, or workers read different
data; 78 stopped by a file STOP, and saved.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from absl import flags

from tfdist.cluster import process_exit
from tfdist.cluster.devices import onednn
from tfdist.cluster.discovery import environment
from tfdist.config import flags as config_flags
from tfdist.config import tensorflow_log
from tfdist.config.schema import ClusterOptions
from tfdist.training import features


def train_or_evaluate(workdir: Path) -> int:
    """Runs the training or evaluation that the flags name, in `workdir`; returns the exit code."""
    from tfdist.training import loop, setup

    config = flags.FLAGS["config"].value
    trains = flags.FLAGS.mode == "train"
    experiment_run = setup.build_run(config, workdir, config_file=config_flags.config_file() if trains else None)
    if trains:
        allowed = {name: flags.FLAGS[name].value for name in ("allow_config_changes", "allow_data_changes")}
        code = loop.train(experiment_run, **allowed)
    else:
        from tfdist.training.evaluation import saved_checkpoint

        code = saved_checkpoint.evaluate_only(experiment_run, flags.FLAGS.checkpoint)
    experiment_run.cluster.leave()
    return code


def keep_freed_memory(options: ClusterOptions, env: Mapping[str, str]) -> bool:
    """With several workers, configures malloc to keep freed memory, which is faster; returns whether it does."""
    if environment.resolve_roughly(env).num_workers == 1:
        return False
    from tfdist.cluster.several_workers import malloc

    return malloc.keep_freed_between_workers(options, env)


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    config = flags.FLAGS["config"].value
    with config_flags.one_message("tfdist"):
        features.check(config)  # Before TensorFlow is imported, so that errors appear at once.
    tensorflow_log.announce()
    keep_freed_memory(config.cluster, os.environ)  # Before TensorFlow allocates memory.
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    process_exit.run_and_exit(lambda: train_or_evaluate(workdir))


def parse(argv: list[str]) -> list[str]:
    """Chooses oneDNN's settings, then parses the flags: a config file may import TensorFlow."""
    onednn.choose(os.environ, config_flags.workdir_of(argv[1:]))
    return config_flags.parse(argv)


if __name__ == "__main__":
    config_flags.define_run_flags()
    config_flags.run_main(main, purpose=__doc__, usage="python -m tfdist.main --config=FILE [flags]", parser=parse)
