"""The loss scale of float16: doubled after steps without an overflow, halved at one, within limits."""

import pytest

from tfdist.training.step.updates import stages


@pytest.mark.parametrize(
    ("start", "finite", "expected"),
    [
        (4.0, [True, True], 8.0),
        (4.0, [True], 4.0),
        (4.0, [False], 2.0),
        (1.0, [False], 1.0),
        (stages.LARGEST_SCALE, [True] * 6, stages.LARGEST_SCALE),
    ],
)
def test_the_scale_follows_the_steps_within_its_limits(start, finite, expected):
    scale = stages.LossScale.create(start)
    scale.growth_steps = 2
    for step in finite:
        scale.update(step)
    assert float(scale.value) == expected
