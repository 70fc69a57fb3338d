"""Losses and metrics that see the whole batch give Keras' numbers of one device, on shards of unequal sizes."""

import numpy as np
import on_workers
import processes
import pytest
import whole_batch

# Numbers of one output's loss: Keras counts a smaller last batch like a full one there.
NOT_COMPARED = {"two_outputs": ("a_loss", "b_loss")}
# A loss, means with masks and weights, an own step, one with gradients by the inputs, a table under XLA.
FAST = ("bce_and_dice", "mean_with_mask", "mean_with_weights", "own_step", "attacked_by_sums", "xla_with_mask")
TOPOLOGIES = {
    "two workers": FAST,
    "three devices, slow": list(whole_batch.CASES),
    "two workers, slow": [name for name in whole_batch.CASES if name not in FAST],
    "Keras": FAST,
    "Keras, slow": [name for name in whole_batch.CASES if name not in FAST],
}


def parameters():
    return [
        pytest.param(topology, name, marks=[pytest.mark.slow] if "slow" in topology else [])
        for topology, names in TOPOLOGIES.items()
        for name in names
        if "Keras" not in topology
    ]


@pytest.fixture(scope="module")
def found():
    """Topology -> the results of each worker, by case."""

    def measure(topology):
        workers, devices = 2 if "workers" in topology else 1, {"three": 3, "two": 1}.get(topology.split()[0], 0)
        return on_workers.call(whole_batch.measure, TOPOLOGIES[topology], devices, workers=workers)

    return processes.measure_groups(measure, ("Keras", "two workers"))


def numbers(case, name):
    history = [value for key, value in case["history"].items() if key not in NOT_COMPARED.get(name, ())]
    values = case["values"][: 1 if name == "two_outputs" else None]
    return np.concatenate([np.ravel(part) for part in (*history, values, *case["weights"])])


@pytest.mark.parametrize(("topology", "name"), parameters())
def test_the_numbers_are_those_of_one_device(found, topology, name):
    (expected,) = found("Keras" if name in FAST else "Keras, slow")
    for worker in found(topology):
        assert worker[name]["history"].keys() == expected[name]["history"].keys()
        np.testing.assert_allclose(numbers(worker[name], name), numbers(expected[name], name), rtol=1e-5, atol=1e-6)
