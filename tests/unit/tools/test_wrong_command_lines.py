"""Mistakes on the command lines of the tools: one message, which says what to do, before anything starts."""

import fcntl

import pytest
from launching import tfdist
from parameters import slow

from tfdist.tools import child_runs, tables


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # Words that are names of shipped configs or end in ".py", for commands without a config.
        ("new digits", "tfdist new: give one kind of data: "),
        ("scaling digits --epochs=9x0", "tfdist scaling: --epochs: must be a whole number and at least 2. "),
        slow("docs mine.py", "tfdist docs: there is no page 'mine.py'. "),
        slow("doctor mine", "--config=mine: there is no file {cwd}/mine. "),
        slow("doctor --gpu digits", "tfdist doctor: --gpu measures this machine: "),
        ("why a b", "tfdist: there is no command 'why'."),
        ("trian digits", "tfdist: there is no command 'trian'. Nearest: train. "),
        slow("scaling digits --replica=1,2", "tfdist scaling: there is no flag --replica. Did you mean --replicas=1,2"),
        ("plot digits --workdir=x", "tfdist plot: there is no flag --workdir. --help lists all flags. "),
        ("train mine.py", "--config=mine.py: the file must define get_config(), "),
        # Values of flags, for commands with and without a config.
        ("sweep digits --random=0", "tfdist sweep: --random: must be a whole number and at least 1. "),
        slow("train digits --mode=x", "tfdist.main: --mode: invalid choice: 'x' (choose from "),
    ],
)
def test_a_mistake_is_one_message(tmp_path, words, message):
    (tmp_path / "mine.py").write_text("open('started', 'w')\n")
    done = tfdist(*words.split(), code=1, cwd=tmp_path)
    printed = done.stdout + done.stderr
    assert printed.startswith(message.format(cwd=tmp_path)) and printed.count("\n") == 1, printed
    assert not (tmp_path / "started").exists()  # A script is not run as a config.


def test_a_folder_of_results_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"The folder of results '.*/file' is a file, and not a directory"):
        tables.make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match=r"The workdir '.*/file' is a file, and not a directory"):
        child_runs.run_command([], tmp_path / "file" / "run.log")


def test_a_second_command_in_a_folder_changes_nothing_there(tmp_path):
    """Two searches for a batch size at once would have one trial, and its result would be that of either."""
    log, folder = tmp_path / "run.log", tmp_path / "run"
    folder.mkdir()
    with log.open("wb", buffering=0) as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        first.write(b"first")
        with pytest.raises(ValueError, match=r"run\.log is in use by another command: wait for its end, or choose"):
            child_runs.run_command(["true"], log, fresh=folder)
    assert folder.is_dir() and log.read_bytes() == b"first"
    assert child_runs.run_command(["echo", "second"], log, fresh=folder) == 0
    assert not folder.exists() and log.read_bytes() == b"second\n"
