"""The final model of a run, in Keras' format."""

import keras

from tfdist.checkpoint import export


class Wrapping(keras.Model):
    """As in Keras' example of a VAE: without `get_config`, Keras cannot save a model made of models."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


class WithAWrongConfig(keras.layers.Layer):
    """Its `get_config` has a mistake, which shows only when the model is saved."""

    def get_config(self):
        return super().get_config() + {"units": 1}

    def call(self, x):
        return x


def test_a_model_that_keras_cannot_save_is_left_out_with_the_reason(tmp_path):
    inner, path = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), tmp_path / "model.keras"
    wrong = keras.Sequential([keras.Input((2,)), WithAWrongConfig(), keras.layers.Dense(1)])
    for model, reason in ((Wrapping(inner), "Object Wrapping was created by passing"), (wrong, "unsupported operand")):
        said = export.export(model, path)
        assert said.startswith("model.keras not written: Keras cannot save this model") and reason in said
        assert list(tmp_path.iterdir()) == []
    assert export.export(inner, path) == f"exported {path}"
