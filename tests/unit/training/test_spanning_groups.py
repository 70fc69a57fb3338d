"""Statistics over groups of examples are the same for any number of replicas, also where a group spans several."""

import functools

import numpy as np
import probes
import pytest
from parameters import slow_except

from tfdist import config as c
from tfdist.training.step.layers import normalization
from tfdist.zoo import models


@pytest.fixture(scope="module")
def on(tmp_path_factory):
    """A function of the number of replicas, which returns what a process with them has measured."""
    return functools.cache(lambda n: probes.measure(tmp_path_factory.mktemp("groups"), "groups", devices=n)[0])


@pytest.mark.workers
@pytest.mark.parametrize("replicas", slow_except([2, 4, 8], [2]))
def test_groups_that_span_replicas_train_as_one_replica_does(on, replicas):
    """Shards of 48, 24, 12 and 6 examples hold groups of 16, one and a half, and parts of one."""
    one, several = on(1), on(replicas)
    names = [name for name in one if name.startswith("groups/model/")]
    moved = [np.abs(one[name] - one[name.replace("groups/", "groups/before ")]).max() for name in names]
    assert max(moved) > 0.01 and len(moved) >= 10
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=0, atol=1e-5, err_msg=name)


def config(**changes):
    parts = {"model": {"target": "tfdist.zoo.models:small_cnn"}, "data": c.Data(batch_size=48)}
    return c.Config(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "replicas", "message"),
    [
        ({"data": c.Data(batch_size=40)}, 1, r"batch_size=40 .* group_size=16 .* 32 or 48"),
        ({"train": c.Train(steps=1, micro_batches=2)}, 2, r"the 12 examples .*one of 1, 2, 3, 4, 6, 12\."),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_name(changes, replicas, message):
    with pytest.raises(ValueError, match=message):
        normalization.install_groups(models.small_cnn(group_size=16), config(**changes), replicas)


def test_layers_whose_groups_fit_a_replica_are_left_alone():
    model = models.small_cnn(group_size=16)
    calls = [layer.call for layer in model.layers]
    normalization.install_groups(model, config(), 3)
    assert [layer.call for layer in model.layers] == calls
    assert normalization.spanning_layers(model, config(), 2)
