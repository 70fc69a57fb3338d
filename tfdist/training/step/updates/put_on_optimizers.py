"""What a run puts on an optimizer object, restored for the script that owns the object."""

from contextlib import AbstractContextManager

import keras

from tfdist.config import patching

# Attributes that `take_over_reduction`, `fused_updates.fuse` and `work_sharing.share` set on an optimizer object.
PUT_ON_OPTIMIZERS = (
    "_all_reduce_sum_gradients",
    "_apply_weight_decay",
    "assign_add",
    "assign_sub",
    "update_step",
    "work_sharing",
)


def restore_methods(optimizer: keras.optimizers.Optimizer) -> AbstractContextManager[None]:
    """Returns a context manager that restores, at its end, what a run sets on an optimizer object."""
    return patching.restore_after([optimizer], PUT_ON_OPTIMIZERS)
