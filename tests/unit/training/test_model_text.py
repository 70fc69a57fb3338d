"""data.json says how the input of model.keras is prepared."""

import json

import keras
import pytest

from tfdist import config as c
from tfdist.training import loop, setup

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]
BYTES = {"target": "tfdist.zoo.prepare:image_bytes", "flip": True}
FINISH = {"target": "tfdist.zoo.prepare:normalised", "scale": 1 / 16, "mean": [0.3], "std": [0.4]}


@pytest.mark.slow
def test_the_text_names_the_functions_the_columns_and_the_classes(tmp_path):
    keras.utils.clear_session()
    config = c.Config(
        model={"target": "lab:linear", "num_classes": 10},
        data=c.Data(batch_size=48, prepare=BYTES, finish=FINISH),
        train=c.Train(steps=2),
        report=c.Report(tensorboard=False),
    )
    assert loop.train(setup.build_run(config, tmp_path)) == 0
    data = json.loads((tmp_path / "data.json").read_text())
    functions = "tfdist.zoo.prepare:image_bytes(flip=True), then tfdist.zoo.prepare:normalised(scale=0.0625, "
    assert f"prepared by {functions}" in data["model.keras"]
    assert data["classes"] == [*"0123456789"]
    assert data["prepared"] == {
        "image": {"dtype": "uint8", "shape": [8, 8, 1]},
        "label": {"dtype": "int64", "shape": []},
    }
