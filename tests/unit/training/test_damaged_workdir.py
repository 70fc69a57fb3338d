"""A damaged file of a workdir ends the start with one message, or is passed over; it never hangs."""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
import small_runs
from parameters import slow_except

from tfdist import config as c
from tfdist.checkpoint import directory
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import error_report
from tfdist.report import read_back
from tfdist.tools.pictures import curves
from tfdist.training import loop, setup
from tfdist.training import run as run_lib

pytestmark = pytest.mark.usefixtures("own_signals")

STEP = "step-00000002"
FILES = [
    *("finished.json", "config.json", "environment.json", "metrics.jsonl", "model.keras"),
    *("checkpoints/best.json", f"checkpoints/{STEP}/manifest.json", f"checkpoints/{STEP}/arrays.npz"),
    *("tensorboard/train/events", "tensorboard/evaluation/events"),
]
DIRECTORIES = ["checkpoints", f"checkpoints/{STEP}", "tensorboard", "tensorboard/train"]
FIFO, LOOP, DANGLING, DIRECTORY = "pipe", "link to itself", "dangling link", "directory"


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\xff\x80{]" * 99,
    "wrong values": lambda content: (
        b'{"step": "2", "kind": [], "train": 3, "model": [1], "state": 5, "format": 1, "best_loss": {}}\n'
    ),
    "huge values": lambda content: b'{"step": %s, "best_loss": %s, "value": NaN}\n' % (b"9" * 400, b"9" * 400),
    "deep": lambda content: b'{"model": ' * 900 + b"1" + b"}" * 900 + b"\n",
}
# What takes the place of a file or directory.
OTHERS: dict[str, Callable[[pathlib.Path], object]] = {
    FIFO: os.mkfifo,
    LOOP: lambda path: path.symlink_to(path.name),
    DANGLING: lambda path: path.symlink_to("nowhere/file"),
    DIRECTORY: lambda path: (path / "file").mkdir(parents=True),
}
DAMAGES = [*CONTENTS, *OTHERS]


PARTS = {
    "train": c.Train(steps=2),
    "report": c.Report(every=c.Every(steps=1)),
    "checkpoint": c.Checkpoint(every=c.Every(steps=1), best_metric="loss", best_mode="min"),
    "evaluation": c.Evaluation(every=c.Every(steps=1)),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> run_lib.Run:
    """A run of two steps that is finished."""
    return small_runs.train(tmp_path_factory.mktemp("finished") / "run", **PARTS)


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """Nothing waits for ever: a checkpoint that cannot be read is awaited for a minute."""

    def late(number, frame):
        raise TimeoutError("not done after 100 s")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def damage(path: pathlib.Path, how: str) -> None:
    content = b"" if path.is_dir() else path.read_bytes()
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    OTHERS[how](path) if how in OTHERS else path.write_bytes(CONTENTS[how](content))


def copied(run: run_lib.Run, workdir: pathlib.Path, name: str, how: str) -> tuple[run_lib.Run, pathlib.Path]:
    """Copies a finished run, and damages a file or directory of the copy; returns the run and the file's path."""
    shutil.copytree(run.workdir, workdir)
    if name != "finished.json":
        (workdir / "finished.json").unlink()  # Otherwise nothing else is read.
    path = workdir / name
    if path.name == "events":
        (path,) = path.parent.glob("*tfevents*")
    damage(path, how)
    return dataclasses.replace(run, workdir=workdir), path


def start(run: run_lib.Run, capsys) -> tuple[int, str]:
    """Starts as the command does; returns the exit code and what standard error shows."""
    capsys.readouterr()
    try:
        code = loop.train(run)
    except Exception as error:
        code = error_report.report_exception(error)
    said = capsys.readouterr().err
    assert "Traceback" not in said and "not done after" not in said, said[-2000:]
    assert code in (0, 1)
    errors = [line for line in said.splitlines() if line.startswith("tfdist: ") and "WARNING" not in line]
    assert len(errors) == code, said
    return code, said


# A pipe could block for ever.
QUICK = [
    *((name, "cut") for name in FILES if name.startswith("checkpoints/") or name == "config.json"),
    *((name, FIFO) for name in ("finished.json", "checkpoints/best.json", "metrics.jsonl")),
    *((name, "wrong values") for name in ("finished.json", f"checkpoints/{STEP}/manifest.json")),
]


@pytest.mark.parametrize(("name", "how"), slow_except(itertools.product(FILES, DAMAGES), QUICK))
def test_a_damaged_file_gives_one_message_or_is_passed_over(finished, tmp_path, capsys, name, how):
    run, path = copied(finished, tmp_path / "run", name, how)
    code, said = start(run, capsys)
    if name.startswith("tensorboard/"):  # Not read by a start.
        assert code == 0 and not said
    if name in ("finished.json", "config.json"):
        assert code == 1 and ((str(path) in said and "remove it" in said) or "different config" in said)
    if name == "metrics.jsonl":
        assert code == (how not in CONTENTS)
        with contextlib.suppress(ValueError):
            read_back.read_records(path)
    if name == "config.json":
        for read in (lambda: setup.build_run(run.config, run.workdir), lambda: curves.read([run.workdir])):
            with contextlib.suppress(ValueError):  # Read before the workers connect, and by a tool.
                read()
    if name == "checkpoints/best.json":  # Written again, if it is not a directory.
        assert code == 0 and (directory.read_best(run.checkpoints) is None) == (how == DIRECTORY)
        damage(path, how)
        with pytest.raises(ValueError, match=r"has no best checkpoint|best\.json cannot be read"):
            checkpoint_format.find(run.checkpoints, "best", print)


@pytest.mark.parametrize(
    ("name", "how"),
    slow_except(
        itertools.product(DIRECTORIES, [FIFO, LOOP, DANGLING, "empty"]),
        [("checkpoints", FIFO), (f"checkpoints/{STEP}", DANGLING)],
    ),
)
def test_something_else_in_place_of_a_directory(finished, tmp_path, capsys, name, how):
    run, path = copied(finished, tmp_path / "run", name, how)
    code, said = start(run, capsys)
    # The checkpoint of the last step cannot be written again through a link to itself.
    refused = name == "checkpoints" or (name, how) == (f"checkpoints/{STEP}", LOOP)
    assert code == refused and str(path) in said, said
    # The reports stay: the run did not start again from the first step.
    records = read_back.read_records(run.workdir / "metrics.jsonl")
    assert [line["step"] for line in records if line["kind"] == "train"] == [1, 2]


def test_an_evaluation_writes_nothing_to_the_workdir(tmp_path, monkeypatch):
    """On several workers it created the workdir, and was refused where a run of another user was evaluated."""
    found = []

    def connect(plan, *, workdir, **others):
        found.append(workdir)
        raise StopIteration

    monkeypatch.setattr(setup.strategy, "connect", connect)
    for trains in (True, False):
        with pytest.raises(StopIteration):
            setup.build_run(small_runs.config(), tmp_path / "run", trains=trains)
    assert found == [tmp_path / "run", None]
