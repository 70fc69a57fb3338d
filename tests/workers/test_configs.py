"""Shipped configs make steps on 1, 2, 4 and 8 replicas, and their batches fit every number that divides them."""

import runpy

import numpy as np
import on_workers
import pytest
import shipped
from launching import REPOSITORY

from tfdist.config import specs, validate
from tfdist.data import batches
from tfdist.training.step.layers import normalization

FOLDER = REPOSITORY / "configs"
# Folders beside the configs.
OTHERS = {"networks", "laboratory"}
CONFIGS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py") if not OTHERS & {*path.parts})


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped.IMAGES)
def test_a_config_makes_the_same_steps_on_every_number_of_replicas(tmp_path, name):
    (found,) = on_workers.call(shipped.all_counts, name, tmp_path)
    if name in shipped.PER_REPLICA:
        loss, moved, _ = found.pop("unchanged")
        assert np.isfinite(loss) and moved > 1e-4
    # Batches of 100 and of 12 are not divided by 8.
    few = name in ("courses.bsc_mnist", "char_gpt") or name in shipped.APPLICATIONS
    assert list(found) == ([1, 2, 4] if few else [1, 2, 4, 8])
    for loss, moved, difference in found.values():
        assert loss == pytest.approx(found[1][0], abs=1e-5)
        assert moved > 1e-4 and difference < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_the_batches_of_a_config_fit_every_number_of_replicas_that_divides_them(name):
    config = runpy.run_path(str(FOLDER / name))["get_config"]()
    counts = [count for count in range(1, 9) if config.data.batch_size % count == 0]
    assert {1, 2, 4} <= set(counts)
    for count in counts:
        batches.check_divisible(config, count)
        config.cluster.logical_devices = count
        validate.validate(config)
    if "group_size" in config.model:
        model = specs.build(config.model, field="config.model")
        for count in counts:
            normalization.install_groups(model, config, count)
