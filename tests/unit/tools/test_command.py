"""`python -m tfdist`: the list of tools, a tool's own help, and names that do not exist."""

import contextlib
import importlib
import importlib.metadata
import os
import pty
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment
from parameters import slow, slow_except

from tfdist import __main__ as command


def tfdist(*arguments):
    """Runs the command; returns (exit code, standard output, standard error)."""
    words = [sys.executable, "-m", "tfdist", *arguments]
    done = subprocess.run(words, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [(), *(slow((word,)) for word in ("--help", "-h"))])
def test_overview_has_a_line_for_each_tool(arguments):
    code, output, error = tfdist(*arguments)
    assert (code, error) == (0, "")
    names = [line.split()[0] for line in output.splitlines() if line.startswith("  ") and "$" not in line]
    assert "  $ tfdist train digits" in output
    assert names == [*command.TRAINING, *command.TOOLS] and "python -m tfdist COMMAND --help" in output
    assert all(len(line) <= 100 for line in output.splitlines())


def test_overview_imports_neither_tensorflow_nor_absl():
    heavy = "{'tensorflow', 'keras', 'absl'}"
    code = f"import sys; from tfdist import __main__; __main__.overview(); sys.exit(len({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60).returncode == 0


@pytest.mark.parametrize("name", command.TOOLS)
def test_each_tool_has_flags_and_an_entry(name):
    tool = importlib.import_module(command.TOOLS[name][0])
    assert callable(tool.add_flags) and callable(tool.main)
    assert f"python -m tfdist {name}" in tool.__doc__


@pytest.mark.parametrize("word", slow_except(["--help", "-h"], ["--help"]))
def test_a_tool_shows_its_own_flags(word):
    code, output, error = tfdist("doctor", "--config=configs/digits.py", word)
    assert (code, error) == (0, "")
    assert output.startswith("usage: python -m tfdist doctor --config=FILE [flags]\n")
    assert "  --job_minutes MINUTES" in output and "  --workdir DIR" in output and str(REPOSITORY) not in output
    assert "--config.data.batch_size=64" in output and "Internal" not in output


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        slow("train", "tfdist.main --config"),
        ("run", "tfdist.run [--workdir=DIR] [--logical_devices=N] [--whole_calls=true] SCRIPT.py"),
        slow("launch", "tfdist.launch --workers=N"),
    ],
)
def test_training_has_commands_too(name, usage):
    code, output, error = tfdist(name, "-h")
    assert (code, error) == (0, "") and output.startswith(f"usage: python -m {usage}")


@pytest.mark.parametrize(
    ("word", "nearest"),
    [slow("doctr", "doctor"), ("batchsize", "batch_size"), ("trian", "train"), slow("async", "asynchronous")],
)
def test_unknown_tool_names_the_nearest(word, nearest):
    code, output, error = tfdist(word, "--config=configs/digits.py")
    assert (code, output) == (1, "")
    assert error.startswith(f"tfdist: there is no command '{word}'. Nearest: {nearest}. ") and "Traceback" not in error


def test_unknown_flag_is_one_message():
    code, _, error = tfdist("scaling", "--config=configs/digits.py", "--replica=1,2")
    assert code == 1 and "there is no flag --replica. Did you mean --replicas=1,2?" in error
    assert "Traceback" not in error


def test_the_nearest_flag_is_one_that_help_shows():
    _, _, error = tfdist("plot", "runs/digits", "--workdir=x")  # absl has a --log_dir.
    assert error == "tfdist plot: there is no flag --workdir. --help lists all flags. Received: --workdir=x\n"


def test_ctrl_c_is_no_stack():
    code = (
        "import sys\nfrom tfdist import __main__\nfrom tfdist.tools.many_runs import run_state\n"
        "def stop(paths):\n    raise KeyboardInterrupt\n"
        "run_state.read_all = stop\nsys.argv[1:] = ['runs']\n__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tfdist runs: stopped by Ctrl-C.\n")


def test_the_version_is_that_of_the_package():
    assert tfdist("--version") == (0, f"tfdist {importlib.metadata.version('tfdist')}\n", "")


def test_a_config_may_name_a_module_beside_it(tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "my_model.py").write_text("SEED = 5\n")
    (tmp_path / "beside" / "mine.py").write_text(
        "from tfdist import config as c\n\n\ndef get_config():\n    import my_model\n\n"
        '    return c.Config(seed=my_model.SEED, model={"target": "my_model:none"})\n'
    )
    script = "from tfdist.__main__ import main; main()"  # As the installed command, without the folder in the path.
    words = [sys.executable, "-P", "-c", script, "train", "beside/mine.py", "--help"]
    done = subprocess.run(words, cwd=tmp_path, env=worker_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "my_model:none" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "digits", "--help"),
        *(slow(words) for words in (("--help",), ("docs", "the"))),
    ],
)
def test_output_that_nobody_reads_ends_a_command_quietly(arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", *arguments],
        cwd=REPOSITORY,
        env=worker_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 0
    process.stderr.close()


@pytest.mark.slow
def test_a_terminal_shows_at_once_that_tensorflow_starts(tmp_path):
    leader, follower = pty.openpty()
    words = [
        sys.executable,
        "-m",
        "tfdist",
        "train",
        "digits",
        "--config.data.batch_size=7919",
        f"--workdir={tmp_path}",
    ]
    process = subprocess.Popen(
        words, cwd=REPOSITORY, env=worker_environment(), stdout=subprocess.DEVNULL, stderr=follower
    )
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
