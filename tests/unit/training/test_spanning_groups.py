"""Statistics over groups of examples are the same for any number of replicas, also where a group spans several."""

import json
import pathlib
import sys
import textwrap

import forked
import numpy as np
import pytest

from tfdist import config as c
from tfdist.training.step.layers import normalization
from tfdist.zoo import models

# 48 examples in groups of 16: shards of 48, 24, 12 and 6 examples hold groups, one and a half, and parts of one.
SUPPORT = str(pathlib.Path(forked.__file__).parent)
TRAIN = """
    import json, pathlib, sys
    import numpy as np
    sys.path.append(sys.argv[3])
    import probes
    from tfdist import config as c

    found = {}
    for replicas in json.loads(sys.argv[2]):
        run = probes.start(
            c.ClusterOptions(logical_devices=replicas),
            model={"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "group_size": 16},
            data=c.Data(prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16}, batch_size=48),
            learning_rate=c.LearningRate(peak=0.02),
        )
        before = {name: array.copy() for name, array in probes.weights(run).items()}
        loss = probes.run_steps(run, 20)["loss"]
        after = probes.weights(run)
        moved = max(float(np.abs(after[name] - before[name]).max()) for name in after)
        found[replicas] = [loss, moved, {name: array.tolist() for name, array in after.items()}]
    pathlib.Path(sys.argv[1]).with_suffix(".json").write_text(json.dumps(found))
"""


@pytest.mark.workers
@pytest.mark.parametrize("several", [(2,), pytest.param((4, 8), marks=pytest.mark.slow)])
def test_groups_that_span_replicas_train_as_one_replica_does(tmp_path, several):
    replicas = json.dumps([1, *several])
    command = [sys.executable, "-c", textwrap.dedent(TRAIN), str(tmp_path / "found"), replicas, SUPPORT]
    result = forked.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    loss, moved, weights = found["1"]
    assert moved > 0.01 and len(weights) >= 10
    for replicas in several:
        other, _, others = found[str(replicas)]
        assert other == pytest.approx(loss, abs=1e-5)
        for name, value in weights.items():
            np.testing.assert_allclose(others[name], value, rtol=0, atol=1e-5, err_msg=f"{replicas} replicas, {name}")


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
