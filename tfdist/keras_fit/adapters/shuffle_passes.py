"""The passes that calls of `fit`, `evaluate` and `predict` have taken from the shuffles of a `tf.data` pipeline.

Each iterator over a shuffle takes the seeds of one pass from it. Workers read ahead: if a callback ends `fit` early,
some have begun the next pass and others have not. A restart that finds a call finished begins none. So the next call of
`fit` reads a copy of the pipeline with new shuffles, and skips as many passes as Keras would have taken in the calls
before.
"""

import weakref
from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_fit.adapters import inspect_dataset, rebuild_pipeline

_ENDED_EARLY = (
    "A callback ended an earlier fit (or `break` a loop) with this shuffled tf.data.Dataset, and workers may have read "
    "ahead differently: its next order may differ between runs and workers. Make the dataset anew before each call of "
    "fit, or loop."
)


# For each shuffle the passes that calls have taken from it, None: not known, because the length of a pass is not; and
# whether a callback ended one of the calls early.
_taken: weakref.WeakKeyDictionary[tf.data.Dataset, tuple[int | None, bool]] = weakref.WeakKeyDictionary()


def passes_taken(shuffles: Sequence[tf.data.Dataset]) -> tuple[int | None, bool]:
    """Returns the passes that Keras would have taken in the calls so far; and whether one of these ended early."""
    found = [_taken[one] for one in shuffles if one in _taken]
    passes = [number for number, _ in found]
    return None if None in passes else max(passes, default=0), any(early for _, early in found)


def add(shuffles: Sequence[tf.data.Dataset], passes: int | None, *, ended_early: bool) -> None:
    """Counts the passes that Keras takes in a call; None: not known."""
    before, early = passes_taken(shuffles)
    total = None if before is None or passes is None else before + passes
    for one in shuffles:
        _taken[one] = (total, early or ended_early)


def continue_passes(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int, str | None]:
    """Returns what the next call of `fit` reads instead of `dataset`.

    Returns:
        The dataset, or a copy with new shuffles; the number of passes to skip; and a message if workers may be at
        different passes, because a copy is not possible and a callback ended a call early.
    """
    before, ended_early = passes_taken(inspect_dataset.shuffles(dataset))
    copy = rebuild_pipeline.with_new_shuffles(dataset) if before else None
    if before == 0 or copy is None:
        return dataset, 0, _ENDED_EARLY if ended_early else None
    return copy, before, None


def of_keras(steps: int, pass_steps: int, *, two_per_epoch: bool) -> int:
    """Returns the passes that `Model.fit` takes for `steps` steps; for `two_per_epoch` see `passes_of_keras`."""
    full, rest = divmod(steps, pass_steps)
    return full * (2 if two_per_epoch else 1) + (rest > 0)
