"""`python -m tfdist`: the list of tools, a tool's own help, and names that do not exist."""

import contextlib
import importlib.metadata
import os
import pty
import subprocess
import sys

import pytest
from launching import REPOSITORY, tfdist, worker_environment
from parameters import slow

from tfdist import __main__ as command

TFDIST = [sys.executable, "-m", "tfdist"]


def test_overview_has_a_line_for_each_tool_and_needs_neither_tensorflow_nor_absl():
    program = "import sys; from tfdist import __main__ as command; command.main(); "
    program += "sys.exit(len({'tensorflow', 'keras', 'absl'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and "$" not in line]
    assert names == [*command.TRAINING, *command.TOOLS] and "python -m tfdist COMMAND --help" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        slow("train -h", "tfdist.main --config"),
        ("run -h", "tfdist.run [--workdir=DIR] [--logical_devices=N] [--whole_calls=true] SCRIPT.py"),
        slow("launch -h", "tfdist.launch --workers=N"),
        ("doctor --config=configs/digits.py --help", "tfdist doctor --config=FILE [flags]\n"),
    ],
)
def test_a_command_shows_its_own_flags(words, usage):
    done = tfdist(*words.split())
    assert done.stderr == "" and done.stdout.startswith(f"usage: python -m {usage}")
    if "doctor" in words:
        assert "  --gpu " in done.stdout and "--config.data.batch_size=64" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("batchsize --config=configs/digits.py", "no command 'batchsize'. Nearest: batch_size. "),
        slow("trian digits", "no command 'trian'. Nearest: train. "),
        slow("scaling --config=configs/digits.py --replica=1,2", "no flag --replica. Did you mean --replicas=1,2?"),
        ("plot runs/digits --workdir=x", "no flag --workdir. --help lists all flags. Received: --workdir=x\n"),
    ],
)
def test_an_unknown_name_is_one_message_with_the_nearest(words, message):
    done = tfdist(*words.split(), code=1)
    assert done.stdout == "" and message in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_is_no_stack():
    code = (
        "import sys\nfrom tfdist import __main__\nfrom tfdist.tools.many_runs import run_state\n"
        "def stop(paths):\n    raise KeyboardInterrupt\n"
        "run_state.read_all = stop\nsys.argv[1:] = ['runs']\n__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tfdist runs: stopped by Ctrl-C.\n")


def test_the_version_is_that_of_the_package():
    assert tfdist("--version").stdout == f"tfdist {importlib.metadata.version('tfdist')}\n"


def test_a_config_may_name_a_module_beside_it(tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "my_model.py").write_text("SEED = 5\n")
    (tmp_path / "beside" / "mine.py").write_text(
        "from tfdist import config as c\n\n\ndef get_config():\n    import my_model\n\n"
        '    return c.Config(seed=my_model.SEED, model={"target": "my_model:none"})\n'
    )
    (tmp_path / "bin").mkdir()  # As the installed command: the folder in which it is started is not in the path.
    (tmp_path / "bin" / "command.py").write_text("from tfdist.__main__ import main\n\nmain()\n")
    words = [sys.executable, "bin/command.py", "train", "beside/mine.py", "--help"]
    done = subprocess.run(words, cwd=tmp_path, env=worker_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "my_model:none" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("train", "digits", "--help"), ("--help",), ("docs",)])
def test_output_that_nobody_reads_ends_a_command_quietly(arguments):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*TFDIST, *arguments], cwd=REPOSITORY, env=worker_environment(), **streams)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 0
    process.stderr.close()


@pytest.mark.slow
def test_a_terminal_shows_at_once_that_tensorflow_starts(tmp_path):
    leader, follower = pty.openpty()
    words = ["train", "digits", "--config.data.batch_size=7919", f"--workdir={tmp_path}"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": follower}
    process = subprocess.Popen([*TFDIST, *words], cwd=REPOSITORY, env=worker_environment(), **streams)
    os.close(follower)
    said = b""
    with contextlib.suppress(OSError):  # The end of a terminal is an error.
        while part := os.read(leader, 4096):
            said += part
    os.close(leader)
    assert process.wait(120) == 1
    first, *rest = said.decode().splitlines()
    assert first == "tfdist: TensorFlow is starting, which takes some seconds"
    assert "config.data.batch_size=7919" in " ".join(rest)
