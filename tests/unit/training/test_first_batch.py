"""What the start of a run says about prepared examples, and what it warns of."""

import json

import keras
import numpy as np
import pytest

from tfdist import config as c
from tfdist.training import loop, setup
from tfdist.training.reporting import first_batch

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]
MODULE = """
import keras
import numpy as np
from tfdist.zoo import sources

def source(split, labels="0123"):
    count = 128
    generator = np.random.default_rng(0)
    label = np.array([int(labels[i % len(labels)]) for i in range(count)])
    image = generator.integers(0, 256, (count, 4, 4, 1)).astype(np.uint8)
    found = sources.arrays(split, splits={"train": {"image": image, "label": label}}, num_classes=12)
    found.num_classes = None
    return found

def network(outputs, scaled=False):
    first = [keras.layers.Rescaling(1 / 255)] if scaled else []
    return keras.Sequential([keras.Input((4, 4, 1)), *first, keras.layers.Flatten(), keras.layers.Dense(outputs)])
"""


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    (tmp_path / "firsts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name, outputs, scaled=False, prepare="image", rate=1e-3, epochs=1, **source):
        keras.utils.clear_session()
        config = c.Config(
            model={"target": "firsts:network", "outputs": outputs, "scaled": scaled},
            data=c.Data(
                source={"target": "firsts:source", **source},
                prepare={"target": f"tfdist.zoo.prepare:{prepare}"},
                evaluation_split=None,
                batch_size=32,
            ),
            optimizer={"target": "keras.optimizers:Adam", "learning_rate": rate},
            train=c.Train(epochs=epochs),
            checkpoint=c.Checkpoint(export=False),
            report=c.Report(tensorboard=False),
        )
        assert loop.train(setup.build_run(config, tmp_path / name)) == 0
        said = capsys.readouterr()
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert {r["text"] for r in records if r["kind"] == "warning"} == {
            line.removeprefix("tfdist: worker 0: ")
            for line in said.err.splitlines()
            if line.startswith("tfdist: worker")
        }
        return said.out, " ".join(said.err.split())

    return run


@pytest.mark.slow
def test_a_start_says_the_range_of_values_and_warns_of_mistakes(train):
    out, error = train("good", 4)
    assert "the first 64 prepared examples have image float32 0 to 1, label int64 0 to 3" in out
    assert "scaled" not in error and "label" not in error.replace("labels in config.data", "")
    _, error = train("twice", 4, scaled=True, epochs=13)
    assert "scaled twice: config.data.prepare returns 0 to 1, and the model's layer 'rescaling'" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "123", "rate": 0.5}, ("no label of the first 64", "config.learning_rate.peak=0.5 is 500 times")),
        ({"labels": "2"}, ("labels of the first 64 training examples are all 2",)),
        ({"scaled": True, "prepare": "identity"}, ()),
    ],
)
def test_high_rates_scaled_values_and_labels_without_a_class(train, options, words):
    _, error = train("run", 4, **options)
    assert all(word in error for word in words) and ("scaled" not in error or words)


@pytest.mark.parametrize(("labels", "words"), [([1, 2, 3, 4], "begin at 0"), ([0, 1, 7, 4], "to 8.")])
def test_labels_beyond_the_outputs_are_named_before_the_first_step(labels, words):
    (found,) = first_batch.label_notes(np.array(labels * 16), (None, 4))
    assert f"there is a label {max(labels)}, and the model has 4 outputs" in found and words in found
