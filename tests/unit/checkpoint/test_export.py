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


def test_an_error_in_a_layers_config_skips_the_export_and_does_not_end_the_run(tmp_path):
    model = keras.Sequential([keras.Input((2,)), WithAWrongConfig(), keras.layers.Dense(1)])
    said = export.export(model, tmp_path / "model.keras", "how to prepare its input")
    assert said.startswith("no model.keras, because Keras cannot save this model") and "unsupported operand" in said
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_keras_cannot_save_is_left_out_with_the_reason(tmp_path):
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert export.export(inner, tmp_path / "model.keras", "caf\udce9") == f"exported {tmp_path / 'model.keras'}"
    assert {path.name for path in tmp_path.iterdir()} == {"model.keras", "model.txt"}
    assert (tmp_path / "model.txt").read_bytes() == b"caf\xe9"  # A class folder may have such a name.
    for path in tmp_path.iterdir():
        path.unlink()
    said = export.export(Wrapping(inner), tmp_path / "model.keras")
    assert said.startswith("no model.keras, because Keras cannot save this model; its weights are in the checkpoint.")
    assert "Object Wrapping was created by passing" in said and list(tmp_path.iterdir()) == []
