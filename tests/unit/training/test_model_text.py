"""data.json says how the input of model.keras is prepared."""

import json

import pytest
from small_runs import data, train

from tfdist import config as c

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]
BYTES = {"target": "tfdist.zoo.prepare:image_bytes", "flip": True}
FINISH = {"target": "tfdist.zoo.prepare:normalised", "scale": 1 / 16, "mean": [0.3], "std": [0.4]}


@pytest.mark.slow
def test_the_text_names_the_functions_the_columns_and_the_classes(tmp_path):
    train(tmp_path, data=data(prepare=BYTES, finish=FINISH), train=c.Train(steps=2))
    said = json.loads((tmp_path / "data.json").read_text())
    functions = "tfdist.zoo.prepare:image_bytes(flip=True), then tfdist.zoo.prepare:normalised(scale=0.0625, "
    assert f"prepared by {functions}" in said["model.keras"]
    assert said["classes"] == [*"0123456789"]
    assert said["prepared"] == {
        "image": {"dtype": "uint8", "shape": [8, 8, 1]},
        "label": {"dtype": "int64", "shape": []},
    }
