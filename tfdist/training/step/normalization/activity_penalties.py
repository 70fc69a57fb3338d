"""Activity regularizers: Keras takes their mean over a batch from 3.14 on, and the sum before."""

import keras


def check(model: keras.Model, num_replicas: int) -> None:
    """Checks that the activity penalties of `model` do not depend on the number of replicas.

    Raises:
        ValueError: they do.
    """
    sums = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14)
    for layer in model._flatten_layers():
        if sums and num_replicas > 1 and getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"Layer {layer.name!r} has an activity_regularizer. Keras {keras.__version__} sums it over a replica's "
                "batch: it would depend on the number of replicas. Install Keras >= 3.14, or train on one replica."
            )
