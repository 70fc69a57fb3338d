"""What a script says about how its data shall be taken."""

import dataclasses
from typing import Any

import keras
from keras.src.trainers.data_adapters import tf_dataset_adapter


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How the data shall be taken."""

    batch_size: int | None = None
    # Steps in an epoch; None: until the data ends.
    steps: int | None = None
    shuffle: bool = False
    class_weight: dict[int, float] | None = None
    seed: int = 0
    # The rank of each input of the model, with the batch's own dimension; None where the model does not say.
    input_ranks: tuple[int, ...] | None = None


def weighted(batch: Any, wish: Wish) -> tuple:
    """Makes (x,), (x, y) or (x, y, sample_weight) of a batch, with the weights of its classes."""
    parts = tuple(part for part in keras.utils.unpack_x_y_sample_weight(batch) if part is not None)
    if wish.class_weight is None:
        return parts
    if len(parts) < 2:
        raise ValueError("class_weight needs targets, and the data has none.")
    return tf_dataset_adapter.make_class_weight_map_fn(wish.class_weight)(*parts)
