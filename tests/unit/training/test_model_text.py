"""model.txt says how the input of model.keras is prepared, in code that gives the run's own results."""

import json
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import topologies

from tfdist import config as c
from tfdist.data import description
from tfdist.training import loop, setup
from tfdist.zoo import sources

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]
BYTES = {"target": "tfdist.zoo.prepare:image_bytes", "flip": True}
FINISH = {"target": "tfdist.zoo.prepare:normalised", "scale": 1 / 16, "mean": [0.3], "std": [0.4]}


def test_the_code_of_the_text_gives_the_accuracy_of_the_run(tmp_path, monkeypatch):
    keras.utils.clear_session()
    config = c.Config(
        model={"target": "lab:linear", "num_classes": 10},
        data=c.Data(batch_size=48, prepare=BYTES, finish=FINISH),
        learning_rate=c.LearningRate(peak=0.05),
        train=c.Train(steps=20),
        report=c.Report(tensorboard=False),
    )
    assert loop.train(setup.build_run(config, tmp_path)) == 0
    text = (tmp_path / "model.txt").read_text()
    assert text.startswith("model.keras expects prepared examples.")
    assert "prepare:image" in text and "finish" in text
    assert "Class numbers: 0 0, 1 1, 2 2" in text
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["classes"] == [*"0123456789"] and data["prepared"]["image"]["shape"] == [8, 8, 1]
    expected = topologies.records(tmp_path, "evaluation")[-1]["accuracy"]
    test = sources.digits("test")
    stored = test.read(tf.range(len(test), dtype=tf.int64))
    code = textwrap.dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    monkeypatch.chdir(tmp_path)
    found = {"batch": stored}
    exec(code, found)
    accuracy = np.mean(np.argmax(found["outputs"], -1) == stored["label"].numpy())
    assert accuracy == pytest.approx(expected, abs=1e-6) and accuracy > 0.5


def test_a_run_with_an_objective_of_its_own_says_who_calls_the_model(tmp_path):
    config = c.Config(
        model={"target": "lab:linear", "num_classes": 10},
        data=c.Data(batch_size=48, prepare={"target": "lab:darkened"}),
        objective={"target": "lab:bounded"},
        train=c.Train(steps=1),
    )
    text = setup.build_run(config, tmp_path).feed.about.usage
    assert "from lab import darkened as prepare\n" in text and "# lab:bounded calls the model with it." in text
    assert "image float32 [n, 8, 8, 1], label int64 [n]" in text


@pytest.mark.parametrize(
    ("objective", "call"),
    [
        ({"target": "tfdist.zoo.objectives:regression"}, '(batch["inputs"])'),
        ({"target": "tfdist.zoo.objectives:regression", "inputs": "targets"}, '(batch["targets"])'),
        ({"target": "tfdist.zoo.objectives:classification"}, "# tfdist.zoo.objectives:classification calls the model"),
    ],
)
def test_model_text_calls_the_model_with_the_inputs_of_the_objective(objective, call):
    spec = {name: tf.TensorSpec([4, 1], tf.float32) for name in ("inputs", "targets")}
    text = description.usage({"target": "lab:darkened"}, None, objective, spec)
    assert call in text.replace("'", '"')
