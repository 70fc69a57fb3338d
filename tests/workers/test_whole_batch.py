"""Losses and metrics that see the whole batch give Keras' numbers of one device, on shards of unequal sizes."""

import functools

import numpy as np
import on_workers
import pytest
import whole_batch

# Numbers of one output's loss: Keras counts a smaller last batch like a full one there.
NOT_COMPARED = {"two_outputs": ("a_loss", "b_loss")}
# A loss, means with masks and weights, a step with gradients by the inputs.
FAST = ("bce_and_dice", "mean_with_mask", "mean_with_weights", "attacked_by_sums")
SLOW = [name for name in whole_batch.CASES if name not in FAST]
TOPOLOGIES = {
    "three devices": FAST,
    "three devices, slow": SLOW,
    "two workers, slow": list(whole_batch.CASES),
}


def parameters():
    return [
        pytest.param(topology, name, marks=[pytest.mark.slow] if "slow" in topology else [])
        for topology, names in TOPOLOGIES.items()
        for name in names
    ]


@pytest.fixture(scope="module")
def found():
    """Topology -> the results of each worker, by case; those of Keras on one device are named "keras:CASE"."""

    @functools.cache
    def measure(topology):
        names, workers = TOPOLOGIES[topology], 2 if "workers" in topology else 1
        if workers == 1:
            names = [*names, *(f"keras:{name}" for name in names)]
        return on_workers.call(whole_batch.measure, names, 1 if workers > 1 else 3, workers=workers)

    return measure


def numbers(case, name):
    history = [value for key, value in case["history"].items() if key not in NOT_COMPARED.get(name, ())]
    values = case["values"][: 1 if name == "two_outputs" else None]
    return np.concatenate([np.ravel(part) for part in (*history, values, *case["weights"])])


@pytest.mark.parametrize(("topology", "name"), parameters())
def test_the_numbers_are_those_of_one_device(found, topology, name):
    expected = found("three devices" if name in FAST else "three devices, slow")[0][f"keras:{name}"]
    for worker in found(topology):
        assert worker[name]["history"].keys() == expected["history"].keys()
        np.testing.assert_allclose(numbers(worker[name], name), numbers(expected, name), rtol=1e-5, atol=1e-6)
