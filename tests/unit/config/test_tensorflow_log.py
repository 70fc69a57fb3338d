"""What is hidden of TensorFlow's log, and nothing that a user needs."""

import os
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment

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
    env = worker_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]), **variables)
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout, done.returncode) == ("", f"{level}\n", 0)
