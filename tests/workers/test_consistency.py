"""Local SGD: what the replicas of a round compute, against arithmetic by hand."""

import types

import numpy as np
import probes
import pytest

from tfdist import config as c
from tfdist.config import specs
from tfdist.configs.laboratory.local_sgd import command
from tfdist.configs.laboratory.local_sgd import rounds as rounds_lib
from tfdist.configs.networks import classic
from tfdist.training.step import learning_rate, train_step
from tfdist.zoo import models, schedules


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What two replicas and one have computed; see `probes.local_rounds`."""
    (found,) = probes.measure(tmp_path_factory.mktemp("local"), "local_rounds", devices=2)
    return {name.removeprefix("local_rounds/"): value for name, value in found.items()}


def rounds(replicas, local_steps, batch, steps):
    """((m, n), momentum) after the rounds: each replica steps alone, then weights and momentum are averaged."""
    points = classic.points("train", m=2.0, n=0.5, noise=0.3, num_examples=64).read(np.arange(64))
    x, y = (np.asarray(points[name], np.float64)[:, 0] for name in ("x", "y"))
    weights, momentum = np.array([-1.0, 2.0]), np.zeros(2)
    size = batch // replicas // local_steps
    for step in range(steps):
        ends = []
        for replica in range(replicas):
            w, v = weights.copy(), momentum.copy()
            for piece in range(local_steps):
                first = step * batch + (replica * local_steps + piece) * size
                xs, ys = x[first : first + size], y[first : first + size]
                error = w[0] * xs + w[1] - ys
                v = 0.5 * v - 0.1 * np.array([np.mean(2 * error * xs), np.mean(2 * error)])
                w = w + v
            ends.append((w, v))
        weights, momentum = (np.mean([end[i] for end in ends], axis=0) for i in range(2))
    return weights, momentum


def fitted(found, name):
    """(m, n) of a run."""
    return np.array([float(found[f"{name}/model/line/{part}"].reshape(())) for part in ("kernel", "bias")])


@pytest.mark.slow
def test_replicas_train_by_themselves_and_average_after_each_round(measured):
    weights, momentum = rounds(2, 4, 16, 4)
    np.testing.assert_allclose(fitted(measured, "rounds"), weights, rtol=1e-5)
    assert np.abs(weights - rounds(2, 1, 16, 4)[0]).max() > 0.1
    slots = {name: value for name, value in measured.items() if name.startswith("replicas/") and "momentum" in name}
    assert len(slots) == 2
    for value, expected in zip(slots.values(), momentum, strict=True):
        np.testing.assert_allclose(value.reshape(2), [expected, expected], rtol=1e-4)
        assert value.reshape(2)[0] == value.reshape(2)[1]
    (iterations,) = (value for name, value in measured.items() if name.startswith("replicas/") and "iteration" in name)
    assert iterations.tolist() == [16, 16]


@pytest.mark.slow
def test_on_one_replica_a_round_is_as_many_steps(measured):
    names = [name.removeprefix("alone/") for name in measured if name.startswith("alone/")]
    assert len(names) > 4
    for name in names:
        np.testing.assert_allclose(measured[f"alone/{name}"], measured[f"steps/{name}"], rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"micro_batches": 2}, r'local SGD needs train\.micro_batches=1, clip_norm=None, nonfinite="stop"'),
        ({"precision": "float16"}, "precision other than float16"),
        ({"nonfinite": "skip"}, 'nonfinite="stop"'),
        ({"clip_norm": 1.0}, "clip_norm=None"),
        ({"batch": 42}, r"batch_size=42 must be a multiple of 1 replicas x --local_steps=4, and each part a multiple"),
        ({"batch": 40}, "each part a multiple of the group_size of the model's normalisation"),
    ],
)
def test_conflicting_options_are_refused(fields, message):
    data = c.Data(batch_size=fields.pop("batch", 64))
    run = types.SimpleNamespace(
        config=c.Config(model={"target": "x:y"}, data=data, train=c.Train(steps=1, **fields)),
        cluster=types.SimpleNamespace(num_replicas=1),
        context=types.SimpleNamespace(model=models.small_cnn(group_size=16), optimizer=None),
        train_step=train_step.train_step,
    )
    with pytest.raises(ValueError, match=message):
        rounds_lib.compose(run, 4)


def test_the_learning_rate_follows_optimizer_steps():
    rate = c.LearningRate(peak=0.1, schedule={"target": "tfdist.zoo.schedules:cosine"}, scaling="linear")
    config = c.Config(model={"target": "x:y"}, data=c.Data(batch_size=256), learning_rate=rate)
    command.configure(config, 4)
    assert learning_rate.peak(config) == 0.1 * 256 / 4 / 256
    found = specs.build(rate.schedule, 0.1, field="schedule", total_steps=10, warmup_steps=2)
    plain = schedules.cosine(0.1, total_steps=40, warmup_steps=8)
    assert [float(found(step)) for step in range(40)] == [float(plain(step)) for step in range(40)]
