"""`python -m tfdist`: the list of tools, a tool's own help, and names that do not exist."""

import contextlib
import importlib.metadata
import os
import pty
import subprocess
import sys

import pytest
from launching import REPOSITORY, python, tfdist, worker_environment
from parameters import slow

from tfdist import __main__ as command

TFDIST = [sys.executable, "-m", "tfdist"]


def test_overview_has_a_line_for_each_tool_and_needs_neither_tensorflow_nor_absl():
    program = "import sys; from tfdist import __main__ as command; command.main(); "
    program += "sys.exit(len({'tensorflow', 'keras', 'absl'} & {*sys.modules}))"
    done = python("-c", program, start=subprocess.run)
    assert done.stderr == ""
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


def test_ctrl_c_is_no_stack():
    code = (
        "import sys\nfrom tfdist import __main__\nfrom tfdist.tools.many_runs import run_state\n"
        "def stop(paths):\n    raise KeyboardInterrupt\n"
        "run_state.read_all = stop\nsys.argv[1:] = ['runs']\n__main__.main()\n"
    )
    done = python("-c", code, code=130, start=subprocess.run)
    assert (done.stdout, done.stderr) == ("", "tfdist runs: stopped by Ctrl-C.\n")


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
    done = python("bin/command.py", "train", "beside/mine.py", "--help", start=subprocess.run, cwd=tmp_path)
    assert "my_model:none" in done.stdout


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
