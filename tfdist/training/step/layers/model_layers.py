"""The layers of a model, and the variables that they update themselves."""

import keras


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model and all of its layers, those in lists, dicts and nested models included."""
    return [*model._flatten_layers()]


def statistics(model: keras.Model, *, frozen: bool = False) -> list[keras.Variable]:
    """Returns the float variables that layers made non-trainable, such as moving averages.

    Args:
        frozen: whether to include those of frozen layers, which change only if user code assigns them.
    """
    return [
        variable
        for layer in all_layers(model)
        if layer.trainable or frozen
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]
