"""`python -m tfdist burnin` on a node that computes wrongly: a bit of a trained weight is flipped in one round.

usage: python burnin_node.py FLAGS_OF_BURNIN
"""

import runpy
import sys

import numpy as np

from tfdist.tools.doctor.burnin import command


def flip_in_one_round(probe, number=3):
    """Flips a bit of the first weight in round `number`, counted from 1."""
    train, calls = probe.train, []

    def train_wrongly():
        calls.append(None)
        weights = [one.numpy().copy() for one in train()]
        if len(calls) == number:
            weights[0].reshape(-1).view(np.int32)[5] ^= 1 << 7
        return [_Array(one) for one in weights]

    probe.train = train_wrongly


class _Array:
    """An array with the method of a tensor that `device.Probe` calls."""

    def __init__(self, value):
        self._value = value

    def numpy(self):
        return self._value


def main(arguments):
    """Runs the command."""
    make = command._probes

    def make_faulty(spec):
        probes = make(spec)
        for _, _, probe in probes:
            flip_in_one_round(probe)
        return probes

    command._probes = make_faulty
    sys.argv = ["tfdist", "burnin", *arguments]
    runpy.run_module("tfdist", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
