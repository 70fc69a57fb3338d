"""`tfdist.fit`, `evaluate` and `predict` on 2 devices and 2 workers match Keras on one device."""

import re

import fits
import numpy as np
import pytest

NAMES = [case.__name__ for case in fits.CASES]
OF_KERAS = [name for name in NAMES if name != "repeated_tokens"]
# Compilation by XLA takes seconds: only on several devices, where most can go wrong.
TOPOLOGIES = {
    "two devices": NAMES,
    "two workers": [name for name in NAMES if name != "by_xla"],
}
PAIRS = [(topology, name) for topology, names in TOPOLOGIES.items() for name in names if name in OF_KERAS]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of the cases, by topology and worker; on one device those of Keras' own fit."""
    places = {topology: tmp_path_factory.mktemp("fits") for topology in ("one device", *TOPOLOGIES)}
    devices, workers = TOPOLOGIES.values()
    keras_own = [f"keras:{name}" for name in OF_KERAS]
    return {
        "one device": fits.measure(places["one device"], [*keras_own, "repeated_tokens", "refused"]),
        "two devices": fits.measure(places["two devices"], devices, devices=2),
        "two workers": fits.measure(places["two workers"], [*workers, "resumed", "application"], workers=2),
    }


def leaves(result):
    """Yields the arrays of nested lists and dicts, in order."""
    if isinstance(result, dict):
        for name in sorted(result):
            yield from leaves(result[name])
    elif isinstance(result, list) and result and isinstance(result[0], list | dict):
        for one in result:
            yield from leaves(one)
    else:
        yield np.array(result, float)


def assert_close(ours, theirs):
    assert list(ours["history"]) == list(theirs["history"]) and ours["left_patched"] == []
    for part in ("history", "weights", "evaluated", "predicted"):
        for mine, yours in zip(leaves(ours[part]), leaves(theirs[part]), strict=True):
            np.testing.assert_allclose(mine, yours, rtol=0, atol=2e-5, err_msg=part)


@pytest.mark.parametrize(("topology", "name"), PAIRS)
def test_what_comes_out_is_what_keras_gives_on_one_device(found, topology, name):
    for worker in found[topology]:
        assert_close(worker[name], found["one device"][0][f"keras:{name}"])


def test_rows_that_come_twice_are_summed_before_they_are_squared(found):
    # On any number of replicas. Keras squares the gradient of each token of an Embedding row separately.
    for worker in (*found["two devices"], *found["two workers"]):
        assert_close(worker["repeated_tokens"], found["one device"][0]["repeated_tokens"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("outside", r"Sequential or its optimizer was made outside of cluster\.scope\(\)"),
        ("uncompiled", r"Call model\.compile\(optimizer=\.\.\., loss=\.\.\.\)"),
        ("eager", r"run_eagerly=True\) is not supported: remove it"),
        ("accumulating", r"gradient_accumulation_steps=2 does not work .* remove it"),
        ("own_step", r"OwnStep overrides train_step, .* override compute_loss"),
        (
            "preprocessing",
            r"Preprocessing has a preprocessor, which keras-hub's own fit calls: map it over the data",
        ),
        ("vectors", r'^A loss with reduction=None is not a scalar: use reduction="sum_over_batch_size"'),
        ("frozen", r"has no weights to train: of its 4 all are frozen"),
        ("lengths", r"same number of examples\. Received: \[9, 53\]"),
        ("objects", r"Data must be arrays .* Received: ndarray of object"),
        ("targets_twice", r"Dataset contains targets and weights: remove y"),
        ("weights_twice", r"either class_weight or sample_weight"),
        ("single", r"has single examples: pass batch_size"),
        ("endless", r"never ends: pass steps_per_epoch"),
        ("generator", r"length of a generator is unknown: pass steps_per_epoch"),
        ("split", r"validation_split=0\.1 needs arrays: pass validation_data\. Received: .*Dataset"),
        ("epochs", r"whole numbers from 1 on.* Received: epochs=0"),
        ("batch_size", r"batch_size must be at least 1\. Received: 0"),
        ("empty", r"has no examples"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(found, name, words):
    assert re.search(words, found["one device"][0]["refused"][name])


def test_all_workers_have_the_same_results(found):
    first, second = found["two workers"]
    assert first == second


def test_a_network_of_keras_applications_trains(found):
    for worker in found["two workers"]:
        assert np.isfinite(worker["application"]["loss"]).all() and np.isfinite(worker["application"]["norms"]).all()
        assert np.mean(worker["application"]["moved"]) > 0.9


def test_what_was_stopped_by_a_signal_goes_on_to_the_same_weights(found):
    for worker in found["two workers"]:
        run = worker["resumed"]
        assert (run["code"], run["difference"]) == (75, 0.0)
        assert run["histories"][0] == run["histories"][1]
