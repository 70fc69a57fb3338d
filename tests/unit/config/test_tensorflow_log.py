"""What is hidden of TensorFlow's log: the lines of its import, and nothing that a user needs."""

import os
import signal
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment

from tfdist.launch import processes

# A stand-in with the lines that TensorFlow writes below Python, and one that it never wrote.
TENSORFLOW = """
import os
os.write(2, b"I0000 00:00:1795365966.446062   24789 port.cc:153] oneDNN custom operations are on.\\n")
if "FAILS" in os.environ:
    raise ImportError("libcudart.so.12")
if "DIES" in os.environ:
    os.write(2, b"compiled to use AVX instructions, but these aren't available on your machine\\n")
    os.kill(os.getpid(), int(os.environ["DIES"]))
"""


def imported(tmp_path, code, **variables):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    env = worker_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]), **variables)
    words = [sys.executable, "-c", code]
    return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)


def test_the_lines_of_an_import_after_that_of_tfdist_are_hidden(tmp_path):
    code = "import tfdist, sys, tensorflow, os; os.write(2, b'later'); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    done = imported(tmp_path, code)
    assert (done.stderr, done.stdout, done.returncode) == ("later", "3\n", 0)


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        ("import tensorflow, tfdist", {}),  # Too late.
        ("import tfdist, tensorflow", {"TF_CPP_MIN_LOG_LEVEL": "0"}),
        ("import tfdist, tensorflow", {"FAILS": "1"}),
    ],
)
def test_the_lines_are_shown_if_they_are_asked_for_or_the_import_fails(tmp_path, code, variables):
    done = imported(tmp_path, code, **variables)
    assert "oneDNN custom operations are on" in done.stderr
    assert ("libcudart.so.12" in done.stderr) == (done.returncode != 0) == ("FAILS" in variables)


def test_a_process_whose_parent_ignores_its_children_can_import(tmp_path):
    """`waitpid` of a child that the kernel has removed failed."""
    done = imported(tmp_path, "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); import tfdist, tensorflow")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_the_lines_are_shown_if_the_import_kills_the_process(tmp_path, number):
    """It died without a word."""
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    env = worker_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]), DIES=str(int(number)))
    words = [sys.executable, "-m", "tfdist.main", "--config=configs/digits.py", f"--workdir={tmp_path / 'run'}"]
    done = subprocess.run(words, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == -number
    assert "compiled to use AVX instructions" in done.stderr and "oneDNN" in done.stderr


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        (b"I0000 00:00:1795365966.446353   24789 cudart_stub.cc:31] Could not find cuda drivers on your machine", True),
        (b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", True),
        (b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow", True),
        (b"W0000 00:00:1795365966.446353   24789 gpu_device.cc:2342] Cannot dlopen some GPU libraries.", False),
        (b"E0000 00:00:1795365966.446353   24789 cuda_executor.cc:1228] failed call to cuInit", False),
        (b"WARNING: config.data.pipeline", False),
        (b"my own line: I0000", False),
    ],
)
def test_warnings_and_errors_are_no_noise(line, noise):
    assert processes.is_noise(line) == noise
