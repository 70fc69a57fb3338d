"""Forward passes that draw the random numbers of another replica, or repeat those of an earlier pass."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.random_numbers import seed_generators


def as_replica(index: tf.Tensor) -> AbstractContextManager[None]:
    """In the block, a forward pass, or a part of one, draws the random numbers of replica `index`, int32 []."""
    return patching.set_in_block(seed_generators.this_pass, replica=index)


def draws_of_branch() -> Callable[[], AbstractContextManager[None]]:
    """Returns a function whose context lets another thread trace a branch of this forward pass and go on drawing."""
    settings = {**vars(seed_generators.this_pass)}

    def enter() -> AbstractContextManager[None]:
        own = {"graph": tf.compat.v1.get_default_graph()} if settings else {}
        return patching.set_in_block(seed_generators.this_pass, **settings | own)

    return enter


def place_in_pass() -> dict[str, Any]:
    """Returns the state of the seeds at this point of the forward pass, for `repeat_from`."""
    return vars(seed_generators.this_pass) | {"calls": dict(getattr(seed_generators.this_pass, "calls", {}))}


@contextlib.contextmanager
def repeat_from(place: dict[str, Any]) -> Iterator[None]:
    """In the block, a part of a forward pass draws again the random numbers that were drawn after `place`."""
    before = dict(vars(seed_generators.this_pass))
    vars(seed_generators.this_pass).update(place, calls=dict(place["calls"]))
    try:
        yield
    finally:
        vars(seed_generators.this_pass).clear()
        vars(seed_generators.this_pass).update(before)
