"""`tfdist.fit`, `evaluate` and `predict` on several devices and workers match Keras on one device."""

import re
import sys

import fits
import numpy as np
import on_workers
import processes
import pytest
from parameters import on_topologies, sizes, slow
from topologies import environments

OF_KERAS = [case.__name__ for case in fits.CASES if case.__name__ != "summed_tokens"]
# Kinds of data are tested on several workers, which divide the data; kinds of steps on several devices. The slow tests
# exchange the two. More kinds of both are scripts of tests/scripts/field.
DATA = ["shuffled"]
STEPS = ["regression", "clipped"]
MORE = ["classification", "summed_tokens", "without_target", "transfer", "repeated_tokens"]
TOPOLOGIES = {
    "two devices": STEPS,
    "four devices, slow": ["transfer"],
    "two workers": DATA,
    "two devices, slow": [*DATA, *MORE, "vae", "wrapped"],
    "two workers, slow": [*STEPS, *MORE],
    "one device, slow": ["repeated_tokens", "summed_tokens", "vae"],
}
# What else is measured, besides cases of `fits.CASES`.
TRIALS = {
    "two devices": ["refused", "refused_steps", "unbuilt", "not_finite"],
    "two devices, slow": ["of_many_types"],
    "two workers": ["chief_first"],
    "two workers, slow": ["of_many_types", "not_finite_slow"],
}
SLOW = {name for name in OF_KERAS if all("slow" in where for where, names in TOPOLOGIES.items() if name in names)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """topology -> results of the cases of each worker, and on two devices those of Keras' own fit on one."""

    def measure(topology):
        directory = tmp_path_factory.mktemp("fits")
        names = [*TOPOLOGIES[topology], *TRIALS.get(topology, [])]
        if "two devices" in topology:
            names[:0] = [f"keras:{name}" for name in OF_KERAS if (name in SLOW) == ("slow" in topology)]
        workers, devices = sizes(topology)
        return on_workers.call(fits.measure, names, devices, directory, workers=workers)

    return processes.measure_groups(measure, ("two devices", "two workers"))


@pytest.mark.parametrize(("topology", "name"), on_topologies(TOPOLOGIES, OF_KERAS))
def test_results_equal_keras_on_one_device(found, topology, name):
    reference = found("two devices, slow" if name in SLOW else "two devices")[0][f"keras:{name}"]
    for worker in found(topology):
        fits.assert_close(worker[name], reference)


@pytest.mark.parametrize(("topology", "name"), on_topologies(TOPOLOGIES, ["summed_tokens"]))
def test_rows_of_a_table_with_a_dense_gradient_are_summed_before_the_square(found, topology, name):
    first = found("one device, slow")[0]
    for worker in found(topology):
        fits.assert_close(worker[name], first[name])
    by_token = found("two devices, slow")[0]["keras:repeated_tokens"]
    pairs = zip(first[name]["weights"], by_token["weights"], strict=True)
    assert max(np.abs(np.subtract(*pair)).max() for pair in pairs) > 1e-3


@pytest.mark.parametrize("trial", ["refused", "refused_steps"])
def test_what_cannot_be_done_is_refused_by_its_argument_or_line(found, trial):
    refused = found("two devices")[0][trial]
    assert [(words, message) for words, message in refused if not re.search(words, message)] == []


@pytest.mark.parametrize(
    ("topology", "name", "words"),
    [
        ("two devices", "array", r"loss is nan in steps \d+ to 7: in step \d, x\[37, 4\] is nan"),
        ("two devices", "rate", r"loss is (nan|inf) in steps? \d+( to \d+)?\..* learning rate.*'s global_clipnorm"),
        slow("two workers, slow", "batches", r"loss is nan in "),
        slow("two workers, slow", "weights", r"in step \d, sample_weight\[12\] is inf"),
    ],
)
def test_a_value_that_is_not_finite_is_named_on_all_workers(found, topology, name, words):
    for worker in found(topology):
        message = worker["not_finite_slow" if "slow" in topology else "not_finite"][name]
        assert re.search(words, message)
        assert "config." not in message


@pytest.mark.parametrize(("topology", "name"), on_topologies(TRIALS, ["of_many_types"]))
def test_variables_and_outputs_may_have_types_that_collectives_lack(found, topology, name):
    for worker in found(topology):
        run = worker[name]
        assert run["initial"] == [[0.5, 0.5], [0, 0], [1, 1], [0.5, 0.5]] and run["later"] == [[1, 1]] * 4
        assert run["weights"] == run["predicted"] == ["bfloat16"] and run["loss"][1] < run["loss"][0]
        types = {"text": "string", **{name: name for name in ("bfloat16", "bool", "uint8", "complex64")}}
        assert run["types"] == types and run["equal"] == dict.fromkeys(types, True)
        assert len(set(run["lengths"])) > 2


@pytest.mark.parametrize("topology", ["two workers", slow("two workers, slow")])
def test_all_workers_have_the_same_results(found, topology):
    first, second = ({name: worker[name] for name in worker if name != "chief_first"} for worker in found(topology))
    assert first and first == second


def test_the_chief_runs_a_block_first_and_its_failure_reaches_the_others(found):
    chief, other = (worker["chief_first"] for worker in found("two workers"))
    assert chief["is_there"] and other["is_there"] and chief["ranks"] == other["ranks"] == [0, 1]
    assert chief["losses"] == other["losses"] and chief["losses"][0] == chief["losses"][1]
    assert chief["words"] == other["words"] and sum(chief["words"][0]) == 2
    assert (chief["ran"], other["ran"]) == ([0], [])
    assert chief["exits"] == other["exits"] == "SystemExit: 3"
    assert chief["fails"] == other["fails"] == "OSError: No space left on device."
    for name, words in (("builds", "call it outside of the block"), ("communicates", "call it outside of the block")):
        assert chief[name] == other[name] and chief[name].startswith("RuntimeError: ") and words in chief[name]


def test_a_model_is_built_by_its_prediction(found):
    assert found("two devices")[0]["unbuilt"] < 1e-6


OF_KERAS_ALONE = """import keras
import numpy as np
import tfdist

cluster = tfdist.connect()
with cluster.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
"""


@pytest.mark.slow
def test_fit_of_keras_on_several_workers_is_refused_with_its_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(OF_KERAS_ALONE)
    codes, outputs = processes.run([[sys.executable, str(script)]] * 2, environments(2), timeout=900.0)
    said = "".join(outputs)
    assert 1 in codes and "tfdist.fit(cluster, model, ...)" in said and re.search('script.py"?, line 9', said), said
