"""The loss scale of float16: doubled after steps without an overflow, halved at one, within limits."""

import pytest

from tfdist.training.step.updates import loss_scale


@pytest.mark.parametrize(
    ("start", "finite", "expected"),
    [
        (4.0, [True, True], 8.0),
        (4.0, [False], 2.0),
        (1.0, [False], 1.0),
        (loss_scale.LARGEST_SCALE, [True] * 6, loss_scale.LARGEST_SCALE),
    ],
)
def test_the_scale_follows_the_steps_within_its_limits(start, finite, expected):
    scale = loss_scale.LossScale.create(start)
    scale.growth_steps = 2
    for step in finite:
        scale.update(step)
    assert float(scale.value) == expected
