"""The table over networks: what is counted, what is measured, and names that do not exist."""

import forked
import keras
import pytest
from launching import csv_rows, tfdist

from tfdist.configs.laboratory import network_table as models


def network(num_classes, input_shape):
    """Returns a network whose operations are easy to count."""
    inputs = keras.Input(input_shape)
    outputs = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, use_bias=False)(keras.layers.Flatten()(outputs)))


def test_a_multiplication_and_an_addition_are_two_operations():
    parameters, gflop = models.count(models.model_spec(f"{__name__}:network", image_size=16, num_classes=10))
    assert parameters == 3 * 3 * 3 * 8 + 16 * 16 * 8 * 10
    assert gflop == pytest.approx(2 * (16 * 16 * 3 * 3 * 3 * 8 + 16 * 16 * 8 * 10) / 1e9)


@pytest.mark.slow
def test_the_table_has_what_is_counted_and_what_is_measured(tmp_path):
    name = "tfdist.zoo.models:mlp"
    words = ["models", f"--names={name}", "--image_size=8", f"--workdir={tmp_path}"]
    output = tfdist(*words, "--num_classes=10", "--batch=4", start=forked.run).stdout
    (row,) = csv_rows(tmp_path / "models.csv")
    assert row["network"] == name and name in output
    assert row["parameters"] == str(192 * 128 + 128 + 128 * 10 + 10)
    assert float(row["memory_mb"]) > 100 and float(row["step_ms"]) > 0 and float(row["gflop_per_image"]) > 0
    assert float(row["images_per_second"]) == pytest.approx(4 / float(row["step_ms"]) * 1e3, abs=0.06)
    counted = tfdist(*words, "--nomeasure", start=forked.run).stdout
    assert "gflop_per_image" in counted and "step_ms" not in counted
