"""A task of `tfdist burnin` on a node of a name of its own, with a planted fault.

usage: python burnin_task.py FOLDER RANK TASKS FAULT ROUNDS [AT_ONCE [MINUTES]]
"""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from absl import flags

from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.tools.doctor.burnin import command, device, exchange


class Slow(device.Probe):
    """Multiplies twice as often as it reports."""

    def _multiply_often(self):
        self._products *= 2
        try:
            return super()._multiply_often()  # Traced once.
        finally:
            self._products //= 2


class Faulty(device.Probe):
    """Changes a weight after the training of a round."""

    def __init__(self, *args, value):
        self.value, self.rounds = value, 0
        super().__init__(*args)

    def round(self):
        train, self.rounds = self.train, self.rounds + 1
        if self.rounds == 4:
            self.train = lambda: [self._changed(one.numpy()) for one in train()]
        try:
            return super().round()
        finally:
            self.train = train

    def _changed(self, weights):
        weights = weights.copy()
        bits = weights.reshape(-1).view(np.int32)
        bits[0] = bits[0] ^ 1 if self.value is None else np.float32(self.value).view(np.int32)
        return tf.constant(weights)


def make(fault):
    """Returns what makes the probe of this task."""
    clock = time.process_time
    if fault == "slow":
        probe = Slow("CPU:0", clock)
    elif fault in ("bit", "nan"):
        probe = Faulty("CPU:0", clock, value=None if fault == "bit" else np.nan)
    else:
        probe = device.Probe("CPU:0", clock)
    return [("CPU", "P", probe)]


def main(folder, rank, tasks, fault, rounds, at_once=None, minutes=60):
    """Runs the task, and exits with its code."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    command._START_SECONDS = command._END_SECONDS = 1800.0  # Many tasks share the processors of this machine.
    command.define_flags()
    flags.FLAGS(
        ["burnin", f"--rounds={rounds}", f"--minutes={minutes}", *([f"--at_once={at_once}"] if at_once else [])]
    )
    spec = WorkerSpec(launcher="test", rank=int(rank), num_workers=int(tasks))
    pause = 0.02 if fault == "link" else 0.0
    files = exchange.Folder(pathlib.Path(folder), spec.rank)
    sys.exit(command.run_rounds(spec, files, lambda: make(fault), node=f"n{rank}", block_seconds=pause))


if __name__ == "__main__":
    main(*sys.argv[1:])
