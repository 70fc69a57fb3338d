"""Replaces parts of the model and of Keras during a run, and restores them at its end."""

import contextlib
from collections.abc import Iterator

import keras

from tfdist.keras_fit.own_step import patches
from tfdist.keras_fit.replacements import shard_losses
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.normalization import synchronized_norm
from tfdist.training.step.random_numbers import seed_generators


@contextlib.contextmanager
def _methods_restored(model: keras.Model) -> Iterator[None]:
    """Restores the methods of the layers and the seed generators that a run replaces."""
    calls = [(layer, vars(layer).get("call")) for layer in synchronized_norm.layers(model)]
    try:
        yield
    finally:
        seed_generators.restore(model)
        for layer, call in calls:
            vars(layer).pop("call", None)
            if call is not None:
                vars(layer)["call"] = call


@contextlib.contextmanager
def patched(model: keras.Model) -> Iterator[contextlib.ExitStack]:
    """Patches Keras for a run, and restores everything at the end; the stack is for what the run finds out."""
    with (
        optimizer_lib.methods_restored(getattr(model.optimizer, "inner_optimizer", model.optimizer)),
        _methods_restored(model),
        shard_losses.patched_losses(model),
        patches.patched(),
        contextlib.ExitStack() as stack,
    ):
        yield stack
