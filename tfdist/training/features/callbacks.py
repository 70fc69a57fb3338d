"""`config.callbacks`: Keras callbacks, named by specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.schema import Config

if TYPE_CHECKING:
    from tfdist.training.run import Run


def refuse(config: Config) -> Iterator[str]:
    """Yields the elements that are no specs."""
    for spec in config.callbacks:
        if not isinstance(spec, dict):
            yield f'callbacks must be a list of dicts with a "target". Received: {spec!r}'


def apply(run: Run) -> Run:
    """Returns `run` with its callbacks; ValueError if one cannot be built, or needs what the run has not."""
    if not run.config.callbacks:
        return run
    from tfdist.training.callbacks import callback_runner

    made = callback_runner.make_callbacks(run.config, run.cluster, run.context, run.feed.sizes)
    return dataclasses.replace(run, callbacks=made)
