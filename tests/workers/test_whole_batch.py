"""Losses and metrics that see the whole batch give Keras' numbers of one device, on shards of unequal sizes."""

import functools

import fits
import on_workers
import own_numbers
import pytest
import whole_batch
from parameters import on_topologies, sizes

# A loss, means with masks and weights, a step with gradients by the inputs.
FAST = ("bce_and_dice", "mean_with_mask", "mean_with_weights", "attacked_by_sums")
SLOW = [name for name in whole_batch.CASES if name not in (*FAST, *own_numbers.REFUSED)]
TOPOLOGIES = {
    "three devices": FAST,
    "three devices, slow": SLOW,
    "two workers, slow": (*FAST, *SLOW),
    # Derivatives of these ways need all examples on one replica.
    "one device, slow": ["newton", "hessian_of_the_graph"],
}


@pytest.fixture(scope="module")
def found():
    """Topology -> the results of each worker, by case; those of Keras on one device are named "keras:CASE"."""

    @functools.cache
    def measure(topology):
        names, (workers, devices) = [*TOPOLOGIES[topology]], sizes(topology)
        if devices == 3:
            names += own_numbers.REFUSED if "slow" in topology else ()
            names += [f"keras:{name}" for name in names]
        return on_workers.call(whole_batch.measure, names, devices, workers=workers)

    return measure


@pytest.mark.parametrize(("topology", "name"), on_topologies(TOPOLOGIES))
def test_the_numbers_are_those_of_one_device(found, topology, name):
    expected = found("three devices" if name in FAST else "three devices, slow")[0][f"keras:{name}"]
    for worker in found(topology):
        fits.assert_close(worker[name], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", own_numbers.REFUSED)
def test_derivatives_by_other_ways_are_refused_on_several_replicas(found, name):
    (worker,) = found("three devices, slow")
    assert own_numbers.REFUSED[name] in worker[name] and "own_numbers.py:" in worker[name]
