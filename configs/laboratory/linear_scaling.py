"""Goyal's rule on a line, for `tfdist trajectories --linear_scaling`: k steps, or one of k times batch and rate.

P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1: the two are about equal while the gradient changes
little within the k steps. Both begin with the same weights and see the same examples: their order does not depend on
the batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np

HEADER = ("k", "batch_size", "rate", "moved_by_k_steps", "apart_after_them", "apart_at_the_end")


def check(multiples: Sequence[int], *, batch: int, steps: int | None, examples: int) -> None:
    """Checks that all batches begin and end at the same examples.

    Args:
        multiples: the k.
        batch: N, `config.data.batch_size`.
        steps: of N examples, `config.train.steps`.
        examples: of the training data.

    Raises:
        ValueError: a batch divides the examples or the steps with a remainder, or there are fewer than 2 k steps.
    """
    for k in multiples:
        if examples % (k * batch):
            raise ValueError(
                f"k={k} times config.data.batch_size={batch} must divide the {examples} examples of an epoch, such as "
                "--config.data.source.num_examples=1024 --config.data.batch_size=8 with --linear_scaling=1,4,16,64."
            )
        if not steps or steps % k or steps < 2 * k:
            raise ValueError(f"config.train.steps={steps} must be a multiple of k={k}, and at least {2 * k}.")


def compare(trajectories: Mapping[int, np.ndarray], *, batch: int, rate: float) -> list[tuple[float, ...]]:
    """Compares each k with k = 1.

    Args:
        trajectories: k -> (m, n) before each step, float64 [steps / k, 2]; k = 1 is among them.
        batch: N.
        rate: of k = 1.

    Returns:
        Rows of `HEADER`: how far the first k steps of k = 1 moved the weights, and the distance from k = 1 after them
        and before the last step.
    """
    rows = []
    for k, points in sorted(trajectories.items()):
        moved = trajectories[1][k] - trajectories[1][0]
        apart = np.linalg.norm(points - trajectories[1][::k], axis=1)
        rows.append((k, k * batch, k * rate, float(np.linalg.norm(moved)), float(apart[1]), float(apart[-1])))
    return rows
