"""What is hidden of TensorFlow's log, and nothing that a user needs."""

import os
import subprocess

import pytest
from launching import REPOSITORY, python

# A stand-in for TensorFlow.
TENSORFLOW = "import os; print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))"


@pytest.mark.parametrize(
    ("code", "variables", "level"),
    [
        ("import tfdist, tensorflow", {}, "3"),
        ("import tfdist, tensorflow", {"TF_CPP_MIN_LOG_LEVEL": "0"}, "0"),
        ("import tensorflow, tfdist", {}, "None"),  # Too late.
    ],
)
def test_tensorflow_is_imported_without_its_log_unless_it_is_asked_for(tmp_path, code, variables, level):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])} | variables
    done = python("-c", code, start=subprocess.run, cwd=tmp_path, **variables)
    assert (done.stderr, done.stdout) == ("", f"{level}\n")
