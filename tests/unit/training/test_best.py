"""Which evaluation is the best one."""

import math

import pytest

from tfdist import config
from tfdist.training.evaluation import evaluate


@pytest.mark.parametrize(
    ("mode", "value", "best", "expected"),
    [
        *(("min", 1.0, None, True), ("min", 1.0, 2.0, True), ("min", 2.0, 2.0, False), ("max", 3.0, 2.0, True)),
        *(("min", math.nan, None, False), ("max", math.inf, 2.0, False)),
    ],
)
def test_the_best_evaluation_is_a_finite_one(mode, value, best, expected):
    """After NaN none would be better."""
    options = config.Checkpoint(best_metric="loss", best_mode=mode)
    assert evaluate.is_best(options, {"loss": value}, best) is expected
