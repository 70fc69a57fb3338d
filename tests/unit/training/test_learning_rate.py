"""The learning rate that a config means: its own, its optimizer's argument, or the default of the optimizer."""

import pytest

from tfdist import config as c
from tfdist import configs
from tfdist.config import load, schema
from tfdist.training.step import learning_rate

MUON = {"target": "tfdist.configs.networks.optimizers:muon"}


def make(peak=None, **fields):
    return c.Config(model={"target": "x:y"}, learning_rate=c.LearningRate(peak=peak), **fields)


def of(target, **arguments):
    return {"target": f"keras.optimizers:{target}", **arguments}


def test_the_rate_is_that_of_the_config_or_of_the_optimizer():
    for config, expected in (
        (make(), 0.1),
        (make(0.3), 0.3),
        (make(0.3, optimizer={**schema.default_optimizer(), "momentum": 0.95}), 0.3),
        (make(optimizer=of("Adam")), 0.001),
        (make(optimizer=of("SGD", momentum=0.9)), 0.01),
        (make(optimizer=of("Adam", learning_rate=3e-4)), 3e-4),
        (make(3e-4, optimizer=of("Adam", learning_rate=3e-4)), 3e-4),
        (make(0.02, optimizer=MUON), 0.02),
    ):
        resolved = learning_rate.resolve(config)
        assert resolved.learning_rate.peak == expected and "learning_rate" not in resolved.optimizer
        assert learning_rate.resolve(resolved) == resolved
    # What runs of earlier releases have saved.
    assert learning_rate.resolve(make()).optimizer == {"target": "keras.optimizers:SGD", "momentum": 0.9}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (make(0.1, optimizer=of("Adam", learning_rate=0.2)), "peak=0.1 and config.optimizer.learning_rate=0.2"),
        (make(optimizer=of("Adam", learning_rate="fast")), "'fast'"),
        (make(optimizer=of("Adam", learning_rate=-0.1)), "-0.1"),
        (make(optimizer=MUON), "muon has no default learning rate"),
    ],
)
def test_a_rate_that_is_not_known_is_named_with_its_field(config, words):
    with pytest.raises(ValueError, match=words):
        learning_rate.resolve(config)


def test_a_rate_far_above_the_usual_is_warned_of_and_no_shipped_config_is():
    assert "peak=0.1 is 100 times" in learning_rate.note(make(0.1, optimizer=of("Adam")))
    assert learning_rate.note(make(0.02, optimizer=of("Adam"))) == ""
    found = [load.load(str(path)) for path in sorted(configs.FOLDER.glob("*.py"))]
    assert len(found) > 8 and [learning_rate.note(learning_rate.resolve(one)) for one in found] == [""] * len(found)


def test_the_log_says_optimizer_rate_and_schedule():
    rate = c.LearningRate(peak=0.1, scaling="linear", reference_batch_size=64, warmup_epochs=2)
    config = c.Config(model={}, optimizer=of("SGD", momentum=0.9), learning_rate=rate, data=c.Data(batch_size=128))
    assert learning_rate.describe(learning_rate.resolve(config)) == (
        "keras.optimizers:SGD(momentum=0.9), learning rate 0.2, constant after a warm-up of 2 epochs"
    )
