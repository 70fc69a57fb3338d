"""What a script's last lines say after an error: the user's line, if the error passed through tfdist."""

import importlib.util
import subprocess
import sys

import pytest
from launching import worker_environment
from parameters import slow

from tfdist.config import patching
from tfdist.keras_fit import connect


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A module of the user's with a metric that fails in a function of a library."""
    file = tmp_path / "lab.py"
    file.write_text("import json\n\n\ndef metric(predictions):\n    return json.loads(predictions)\n")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("lab", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reported(function, capsys):
    """Calls `function`, and returns what is printed for its error."""
    try:
        function("{")
    except Exception as error:
        connect._report(type(error), error, error.__traceback__)
    return capsys.readouterr().err


def test_an_error_in_a_function_that_tfdist_called_names_the_users_line(lab, capsys):
    with patching.patch(lab, "metric", lambda original, *args: original(*args)):
        printed = reported(lab.metric, capsys)
    assert "tfdist: lab.py, line 5, `return json.loads(predictions)`: JSONDecodeError: Expecting" in printed


@pytest.mark.parametrize(
    ("code", "printed", "error"),
    [
        ("import os, tfdist; print(os.environ['KERAS_BACKEND'])", "tensorflow", ""),
        slow("import keras, tfdist; print('later'); tfdist.connect()", "later", "Received: 'numpy'"),
    ],
)
def test_keras_has_the_backend_tensorflow_whatever_the_environment_says(code, printed, error):
    if error:
        pytest.importorskip("scipy", reason="pip install scipy, which Keras' backend numpy needs")
    env = worker_environment(KERAS_BACKEND="numpy")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == printed and error in done.stderr and bool(done.stderr) == bool(error), done
