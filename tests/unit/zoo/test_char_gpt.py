"""The transformer of `configs/char_gpt.py`, its optimizer, and the texts that it writes."""

import keras
import numpy as np
import pytest
import topologies
from launching import REPOSITORY, run_all

from tfdist.configs.networks import char_gpt

CHARACTERS = "\n abcde"


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return char_gpt.network(len(CHARACTERS), length=8, layer_count=1, heads=2, width=8)


def test_a_prediction_depends_on_no_later_character(model):
    first = np.array([[1, 2, 3, 4, 5, 6]], np.int32)
    second = np.array([[1, 2, 3, 6, 1, 2]], np.int32)
    one, other = (keras.ops.convert_to_numpy(model(numbers)) for numbers in (first, second))
    np.testing.assert_allclose(one[:, :3], other[:, :3], rtol=0, atol=1e-6)
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-4
    # Also without the characters behind it.
    np.testing.assert_allclose(one[:, :3], keras.ops.convert_to_numpy(model(first[:, :3])), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_text_is_drawn_from_the_predictions_and_a_seed_repeats_it(model):
    texts = [char_gpt.write(model, CHARACTERS, "ab", count=9, length=8, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("ab") and len(texts[0]) == 11 and set(texts[0]) <= set(CHARACTERS)
    # At a low temperature, each character is the likeliest.
    text = char_gpt.write(model, CHARACTERS, "ab", count=3, length=8, temperature=1e-6)
    for end in (2, 3, 4):
        numbers = np.array([[CHARACTERS.index(one) for one in text[:end]]], np.int32)
        assert text[end] == CHARACTERS[int(np.argmax(model(numbers)[0, -1]))]


@pytest.mark.slow
def test_two_workers_learn_a_text_as_one_does_and_only_the_chief_writes(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcde " * 400)
    values = {"model.width": 16, "model.layer_count": 1, "train.steps": 12, "evaluation.every.steps": 6}
    small = [f"--config.{name}={value}" for name, value in values.items()]
    losses = []
    for workers in (1, 2):
        workdir = tmp_path / str(workers)
        line = topologies.command(workdir, *small, config=f"{REPOSITORY / 'configs/char_gpt.py'}:{text}")
        outputs = run_all([line] * workers, topologies.environments(workers))
        assert [output.count("the model writes: '") for output in outputs] == [2, 0][:workers]
        losses.append([record["loss"] for record in topologies.records(workdir, "evaluation")])
    assert losses[0][1] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-4)
