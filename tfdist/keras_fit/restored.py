"""Replaces parts of the model and of Keras during a run, and restores them at its end."""

import contextlib
from collections.abc import Iterator

import keras

from tfdist.keras_fit.own_step import patches
from tfdist.keras_fit.replacements import shard_losses
from tfdist.training import api as trainer


@contextlib.contextmanager
def _methods_restored(model: keras.Model) -> Iterator[None]:
    """Restores the methods of the layers and the seed generators that a run replaces."""
    calls = [(layer, vars(layer).get("call")) for layer in trainer.synchronized_layers(model)]
    try:
        yield
    finally:
        trainer.restore_seed_generators(model)
        for layer, call in calls:
            vars(layer).pop("call", None)
            if call is not None:
                vars(layer)["call"] = call


@contextlib.contextmanager
def patched(model: keras.Model) -> Iterator[contextlib.ExitStack]:
    """Patches Keras for a run, and restores everything at the end; the stack is for what the run finds out."""
    with (
        trainer.methods_restored(getattr(model.optimizer, "inner_optimizer", model.optimizer)),
        _methods_restored(model),
        shard_losses.patched_losses(model),
        patches.patched(),
        contextlib.ExitStack() as stack,
    ):
        yield stack
