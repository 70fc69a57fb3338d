"""`tfdist.fit`, `evaluate` and `predict` on 1 device, 2 devices and 2 workers give what Keras gives on one device."""

import re

import fits
import numpy as np
import pytest

NAMES = [case.__name__ for case in fits.CASES if case is not fits.repeated_tokens]


@pytest.fixture(scope="module")
def keras_own(tmp_path_factory):
    return fits.measure(tmp_path_factory.mktemp("keras"), devices=0)[0]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return fits.measure(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory):
    return fits.measure(tmp_path_factory.mktemp("two_devices"), devices=2)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    return fits.measure(tmp_path_factory.mktemp("two_workers"), workers=2)


@pytest.fixture(scope="module", params=["one", "two_devices", "two_workers"])
def workers(request):
    return request.getfixturevalue(request.param)


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


def assert_close(ours, theirs, name):
    assert ours[name]["history"].keys() == theirs[name]["history"].keys()
    for part in ("history", "weights", "evaluated", "predicted"):
        for mine, yours in zip(leaves(ours[name][part]), leaves(theirs[name][part]), strict=True):
            np.testing.assert_allclose(mine, yours, rtol=0, atol=2e-5, err_msg=f"{name}: {part}")


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_out_is_what_keras_gives_on_one_device(keras_own, workers, name):
    for worker in workers:
        assert_close(worker, keras_own, name)


def test_rows_that_come_twice_are_summed_before_they_are_squared(one, workers):
    assert_close(workers[0], one[0], "repeated_tokens")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("outside", r"Sequential or its optimizer was made outside of cluster\.scope\(\)"),
        ("uncompiled", r"Call model\.compile\(optimizer=\.\.\., loss=\.\.\.\)"),
        ("eager", r"run_eagerly=True\) cannot be distributed: leave it out"),
        ("accumulating", r"gradient_accumulation_steps=2 does not work .* leave it out"),
        ("own_step", r"OwnStep has a train_step of its own, .* override compute_loss"),
        ("vectors", r'reduction=None is no number to minimise: use "sum_over_batch_size"'),
        ("lengths", r"same number of examples\. Received: \[9, 53\]"),
        ("objects", r"Data must be arrays .* Received: ndarray of object"),
        ("targets_twice", r"Dataset gives targets and weights itself: leave out y"),
        ("weights_twice", r"either class_weight or sample_weight"),
        ("single", r"gives single examples: pass batch_size"),
        ("endless", r"never ends: pass steps_per_epoch"),
        ("generator", r"does not tell its length: pass steps_per_epoch"),
        ("split", r"validation_split=0\.1 needs arrays\. Received: .*Dataset; pass validation_data"),
        ("epochs", r"whole numbers from 1 on.* Received: epochs=0"),
        ("batch_size", r"batch_size must be at least 1\. Received: 0"),
        ("empty", r"has no examples"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(one, name, words):
    assert re.search(words, one[0]["refused"][name])


def test_all_workers_have_the_same_results(workers):
    assert all(worker == workers[0] for worker in workers)


def test_what_was_stopped_by_a_signal_goes_on_to_the_same_weights(two_workers):
    for worker in two_workers:
        for run in worker["resumed"]:
            assert (run["code"], run["difference"]) == (75, 0.0)
            ours, expected = run["last"]
            assert ours == pytest.approx(expected, rel=1e-6)
