"""Which replicas a message about different hashes names."""

import numpy as np
import pytest

from tfdist.training.consistency import mismatch

NAMES = [f"worker {rank}" for rank in range(5)]


@pytest.mark.parametrize(
    ("hashes", "who"),
    [
        ([[1], [1], [2], [1], [1]], "worker 2 differs from most others"),
        ([[2], [1], [1], [1], [1]], "worker 0 differs from most others"),
        ([[1, 7], [1, 8], [2, 7], [1, 7], [1, 7]], "worker 1, worker 2 differ from most others"),
        # Without a majority the chief is right.
        ([[1], [2], [2], [3], [3]], "worker 1, worker 2, worker 3, worker 4 differ from the chief"),
    ],
)
def test_those_that_differ_from_the_majority_or_else_from_the_chief_are_named(hashes, who):
    _, found = mismatch.describe_mismatch(["a", "b"][: len(hashes[0])], np.array(hashes), NAMES)
    assert found == who
