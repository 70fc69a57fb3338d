"""The passes that calls of `fit`, `evaluate` and `predict` have taken from the shuffles of a `tf.data` pipeline.

Each iterator over a shuffle takes the seeds of one pass from it. Workers read ahead: if a callback ends `fit` early,
some have begun the next pass and others have not. A restart that finds a call finished begins none. So the next call of
`fit` reads a copy of the pipeline with new shuffles, and skips as many passes as Keras would have taken in the calls
before.
"""

import dataclasses
import weakref

import tensorflow as tf

from tfdist.keras_fit.adapters import inspect_dataset, rebuild_pipeline

_ENDED_EARLY = (
    "A callback ended an earlier fit with this shuffled tf.data.Dataset, and workers may have read ahead differently: "
    "its next order may differ between runs and workers. Make the dataset anew before each call of fit."
)


@dataclasses.dataclass(slots=True)
class _Taken:
    """What calls have taken from one shuffle."""

    # None: not known, because the length of a pass is not.
    passes: int | None = 0
    # Whether a callback ended one of the calls early.
    ended_early: bool = False


_taken: weakref.WeakKeyDictionary[tf.data.Dataset, _Taken] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class ShufflePasses:
    """The shuffles of a pipeline that order its examples."""

    shuffles: tuple[tf.data.Dataset, ...]

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> "ShufflePasses":
        """Finds the shuffles; those before another one are not among them."""
        return cls(tuple(inspect_dataset.shuffles(dataset)))

    def before(self) -> int | None:
        """Returns the passes that Keras would have taken in the calls so far; None: not known."""
        passes = [_taken[one].passes for one in self.shuffles if one in _taken]
        return None if None in passes else max(passes, default=0)

    def ended_early(self) -> bool:
        """Returns whether a callback ended one of the calls early."""
        return any(_taken[one].ended_early for one in self.shuffles if one in _taken)

    def add(self, passes: int | None, *, ended_early: bool) -> None:
        """Counts the passes that Keras takes in a call; None: not known."""
        total, early = self.before(), self.ended_early() or ended_early
        total = None if total is None or passes is None else total + passes
        for one in self.shuffles:
            _taken[one] = _Taken(total, early)


def continue_passes(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int, str | None]:
    """Returns what the next call of `fit` reads instead of `dataset`.

    Returns:
        The dataset, or a copy with new shuffles; the number of passes to skip; and a message if workers may be at
        different passes, because a copy is not possible and a callback ended a call early.
    """
    shuffles = ShufflePasses.of(dataset)
    before = shuffles.before()
    copy = rebuild_pipeline.with_new_shuffles(dataset) if before else None
    if before == 0 or copy is None:
        return dataset, 0, _ENDED_EARLY if shuffles.ended_early() else None
    return copy, before, None


def of_keras(steps: int, pass_steps: int, *, two_per_epoch: bool) -> int:
    """Returns the passes that `Model.fit` takes for `steps` steps; for `two_per_epoch` see `passes_of_keras`."""
    full, rest = divmod(steps, pass_steps)
    return full * (2 if two_per_epoch else 1) + (rest > 0)
