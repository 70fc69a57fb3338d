"""What a server forks is what `subprocess` starts, but for the import."""

import os
import pathlib
import signal
import subprocess
import sys

import forked
import pytest

pytestmark = pytest.mark.workers
QUIET = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
SCRIPT = "import inspect, sys\ndef f(): pass\nprint(sys.argv, sys.path, __file__, inspect.getsource(f))\n1 / 0\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "1 +"],
        ["-c", "import atexit, threading; atexit.register(print, 'bye'); threading.Timer(0.2, print, '!').start()"],
        ["-c", "import ctypes; ctypes.string_at(0)"],
        [
            "-c",
            "import os, signal; print([signal.getsignal(n) for n in (1, 2, 10, 13, 15)], os.listdir('/proc/self/fd'))",
        ],
        [
            "-c",
            "import os, sys; print(sys.argv, sys.orig_argv, sys.path, sys.flags, os.getcwd(), os.umask(0))",
            "a",
            "-b",
        ],
        ["-c", "import sys; print(sys.stdin.read(), sys.stdout.encoding, sys.stdout.line_buffering, __name__)"],
        ["-m", "tfdist.main", "--config=configs/digits.py", "--nope"],
        ["script.py", "word"],
    ],
)
def test_a_fork_prints_and_ends_as_a_process_of_its_own(tmp_path, words):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "configs").symlink_to(pathlib.Path(__file__).parents[1] / "configs")
    keywords = {"input": "hällo", "capture_output": True, "text": True, "timeout": 180, "cwd": tmp_path, "env": QUIET}
    own, fork = (run([sys.executable, *words], **keywords) for run in (subprocess.run, forked.run))
    assert (fork.returncode, fork.stdout, fork.stderr) == (own.returncode, own.stdout, own.stderr)


def test_the_server_runs_no_operation_and_its_children_draw_different_numbers():
    code = (
        "import os, random, numpy as np; from tensorflow.python.eager import context; "
        "print(context._context, len(os.listdir('/proc/self/task')), random.random(), np.random.rand(), hash('x'))"
    )
    keywords = {"capture_output": True, "text": True, "env": os.environ | {forked.OPTIMIZE: "1"}}
    lines = [forked.run([sys.executable, "-c", code], **keywords).stdout.split() for _ in range(2)]
    assert [line[:2] for line in lines] == [["None", "1"]] * 2
    assert all(one != other for one, other in zip(lines[0][2:], lines[1][2:], strict=True))


def test_signals_and_timeouts():
    process = forked.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process.server is not None and process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)
    process.terminate()
    assert process.wait(timeout=10) == -signal.SIGTERM == process.poll()


def test_variables_read_at_the_import_are_left_to_subprocesses():
    command = [sys.executable, "-c", "pass"]
    assert forked.forkable(command, os.environ | {"TF_CONFIG": "{}"})
    assert not forked.forkable(command, os.environ | {"OMP_NUM_THREADS": "7"})
    assert not forked.forkable(["env", *command], os.environ)
    assert not forked.forkable([sys.executable, "-I", "-c", "pass"], os.environ)
