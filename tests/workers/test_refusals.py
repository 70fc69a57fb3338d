"""What tfdist.fit, evaluate and predict refuse on two devices, each with one message."""

import json
import re
import sys

import processes
import pytest
from launching import REPOSITORY, run_all, worker_environment
from topologies import environments

IN_A_GRAPH = (
    r"The optimizer '(?i:sgd)\w*' is applied inside a tf\.cond, a tf\.while_loop or a function .*"
    r"refused_calls\.py:\d+: model\."
)
REFUSED = {
    "applies_in_loop": IN_A_GRAPH,
    "applies_in_evaluation": r"^test_step applies the optimizer '(?i:sgd)\w*': an evaluation must not train\.",
    "variable_outside": r"^The variable Own\.steps was made outside of cluster\.scope\(\): build the model within",
    "variable_unowned": r"^The training step writes variables that belong neither .*optimizer: calls \(\S+\.py:\d+: ",
    "no_loss": r"^No loss to compute\. Provide a `loss` argument in `compile\(\)`\.",
    "eager_ragged": r"^compile\(run_eagerly=True\) needs dense tensors\. Received: RaggedTensorSpec",
    "weights_alone": r"^Weights need targets\. Received: y=None",
    "class_weight_alone": r"^class_weight needs targets, but the data has none\.",
    "class_weight_of_two": r"^class_weight is for models with a single output\. Received: 2 arrays of targets",
    "outputs": r'^outputs must be "all" or "chief"\. Received: \'some\'',
    "train_function": r"^OwnFunction has its own make_train_function, .* is not called: .* into train_step, and remove",
    "test_function": r"^OwnFunction has its own make_test_function, .* Put what it does into test_step, and remove it",
    "predict_function": r"^Sequential has its own make_predict_function, .* Put what it does into predict_step, and",
    "apply_of_object": r"^SGD\.apply was set on the object",
    "other_optimizer": r"^model\.optimizer was set to Adam after a call of fit",
    "nothing": r"^The data has no examples\.",
    "hidden_rows": r"^The data of predict has a known number of rows in x, .*shape=\(4, 3\)",
    "no_batches": r"generator must yield at least one batch",
    "batch_of_text": r"^A batch must be x, \(x,\), \(x, y\) or \(x, y, sample_weight\) of arrays\. Received: str",
}

OF_KERAS = """import keras
import numpy as np

import tfdist

cluster = tfdist.connect()
with cluster.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")

model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("refused") / "messages.json"
    script = REPOSITORY / "tests/support/refused_calls.py"
    run_all([[sys.executable, str(script), str(out)]], [worker_environment()])
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_cannot_be_made_is_refused_with_a_reason(found, name):
    assert re.search(REFUSED[name], found[name]), found[name]


@pytest.mark.slow
def test_fit_of_keras_on_several_workers_is_refused_with_its_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(OF_KERAS)
    codes, outputs = processes.run([[sys.executable, str(script)]] * 2, environments(2), timeout=900.0)
    words = (
        r"model\.fit, model\.evaluate and model\.predict are Keras' own, .*: call tfdist\.fit\(cluster, model, \.\.\.\)"
    )
    assert 1 in codes and any(re.search(words, output) for output in outputs), outputs
    assert any("script.py, line 11" in output for output in outputs), outputs
