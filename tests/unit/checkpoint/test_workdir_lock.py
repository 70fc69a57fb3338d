"""One run at a time writes to a workdir: a live one is named, a dead one is taken over."""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import forked
import pytest
from launching import REPOSITORY
from processes import until

from tfdist.checkpoint import workdir_lock

# Between two signs of life, and between two looks at those of others, in these tests.
HEARTBEAT_SECONDS, POLL_SECONDS = 0.2, 0.05
# Holds the workdir for some seconds or until its input ends; exits with 1 and a message if refused, or if it lost it.
HOLDER = """
import os, pathlib, sys, time
from tfdist.checkpoint import workdir_lock
try:
    lock = workdir_lock.acquire(
        pathlib.Path(sys.argv[1]), job=sys.argv[2], heartbeat_seconds=float(sys.argv[4]), wait_seconds=30.0,
        lost=lambda other: (print("lost to", other, flush=True), os._exit(1)), log=print,
    )
except workdir_lock.WorkdirInUseError as error:
    sys.exit(str(error))
print("acquired", flush=True)
time.sleep(float(sys.argv[3])) if sys.argv[3] != "told" else sys.stdin.read()
lock.release()
print("released", flush=True)
"""


def holder(workdir: pathlib.Path, job: str = "", seconds: float | str = 600.0, before: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", before + HOLDER, str(workdir), job, str(seconds), str(HEARTBEAT_SECONDS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return forked.Popen(command, cwd=REPOSITORY, text=True, **pipes)


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch):
    """Looks at the file of another run more often than twice a second."""
    monkeypatch.setattr(workdir_lock, "_POLL_SECONDS", POLL_SECONDS)


@pytest.fixture
def held(tmp_path, request):
    """A process that holds tmp_path; a parameter is what it runs before."""
    with holder(tmp_path, "17", before=getattr(request, "param", "")) as process:
        assert process.stdout.readline() == "acquired\n"
        yield process
        process.kill()


def acquire(workdir: pathlib.Path, job: str = "", wait: float = 0.0, lost=print, log=print) -> workdir_lock.WorkdirLock:
    seconds = {"heartbeat_seconds": HEARTBEAT_SECONDS, "wait_seconds": wait}
    return workdir_lock.acquire(workdir, job=job, lost=lost, log=log, **seconds)


def move_away(workdir: pathlib.Path) -> None:
    """Makes the owner look like one on another host."""
    path = workdir / workdir_lock.LOCK
    values = json.loads(path.read_text()) | {"machine": "another boot", "host": "n7"}
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("number", [None, signal.SIGSTOP])
def test_a_second_start_is_refused_with_the_name_of_the_first(tmp_path, held, number):
    if number:
        held.send_signal(number)
        time.sleep(4 * HEARTBEAT_SECONDS)  # Longer than three, after which it would be dead on another host.
    with pytest.raises(workdir_lock.WorkdirInUseError, match=rf"job 17, host .*process {held.pid}, since 20"):
        acquire(tmp_path, wait=20.0)


def test_the_lock_of_a_killed_process_is_taken_at_once(tmp_path, held):
    lock_file = tmp_path / workdir_lock.LOCK
    values = json.loads(lock_file.read_text())
    held.kill()
    time.sleep(0.2)  # Not reaped: a zombie.
    logged = []
    acquire(tmp_path, log=logged.append).release()
    assert len(logged) == 1 and f"process {held.pid}" in logged[0] and list(tmp_path.iterdir()) == []
    # Its number may now belong to another process.
    lock_file.write_text(json.dumps(values | {"pid": os.getpid()}))
    acquire(tmp_path).release()


@pytest.mark.parametrize("held", ["", "import os\nos.utime = None\n"], indirect=True)
def test_a_lock_of_another_host_is_taken_only_when_its_heartbeats_stop(tmp_path, held):
    """Also where times of files cannot be set, as on gcsfuse: such a lock looked dead after three heartbeats."""
    move_away(tmp_path)
    time.sleep(4 * HEARTBEAT_SECONDS)
    with pytest.raises(workdir_lock.WorkdirInUseError, match="host n7"):
        acquire(tmp_path, wait=20.0)
    held.kill()
    started = time.monotonic()
    lock = acquire(tmp_path, wait=20.0)
    assert 3 * HEARTBEAT_SECONDS <= time.monotonic() - started < 10
    lock.release()


def test_a_stopped_owner_that_was_taken_over_ends_when_it_continues(tmp_path, held):
    move_away(tmp_path)
    held.send_signal(signal.SIGSTOP)
    lock = acquire(tmp_path, wait=20.0)
    held.send_signal(signal.SIGCONT)
    output = held.communicate(timeout=30)[0]
    assert held.returncode == 1 and f"lost to host {os.uname().nodename}, process {os.getpid()}" in output
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_requeued_job_waits_for_its_own_last_processes(tmp_path):
    with holder(tmp_path, "5", seconds=0.7) as process:
        assert process.stdout.readline() == "acquired\n"
        logged = []
        lock = acquire(tmp_path, job="5", wait=60.0, log=logged.append)
        assert logged and logged[0].startswith(f"waiting for the run that holds {tmp_path}: job 5, host ")
        assert process.wait(timeout=30) == 0
        lock.release()
    with holder(tmp_path, "5") as process:
        process.stdout.readline()
        with pytest.raises(workdir_lock.WorkdirInUseError, match="job 5"):
            acquire(tmp_path, job="5", wait=0.4)
        process.kill()


def damaged(**changes) -> bytes:
    owner = workdir_lock.Owner(host="n1", pid=7, start="9", since=1.0, nonce="abc")
    return json.dumps(dataclasses.asdict(owner) | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b'{"job": "1', b"null", b'{"nonce": "../../x"}', b"[" * 100_000, b"\x00" * 50, b"\xff\xfe"),
        *(damaged(pid="x"), damaged(since=float("nan")), damaged(since=10**400), damaged(nonce="n" * 70_000)),
        *(damaged(heartbeat_seconds=seconds) for seconds in (float("nan"), -1, 0, 10**400)),
    ],
)
def test_a_damaged_file_is_half_written_and_does_not_block_the_workdir(tmp_path, content, monkeypatch):
    (tmp_path / workdir_lock.LOCK).write_bytes(content)
    assert workdir_lock._read(tmp_path / workdir_lock.LOCK)[0] == workdir_lock.Owner()
    if len(content) < 20:
        monkeypatch.setattr(workdir_lock, "_UNREADABLE", workdir_lock.Owner(heartbeat_seconds=0.05))
        acquire(tmp_path, wait=20.0).release()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("nowhere"), os.mkfifo, os.mkdir])
def test_names_that_are_no_files_are_refused_at_once(tmp_path, make):
    make(tmp_path / workdir_lock.LOCK)
    with pytest.raises(workdir_lock.WorkdirInUseError, match="tfdist-run is not a file of tfdist"):
        acquire(tmp_path, wait=20.0)


def test_of_many_starts_at_once_one_gets_the_lock(tmp_path, held):
    held.kill()
    held.wait()
    processes = [holder(tmp_path, seconds="told") for _ in range(4)]
    until(lambda: sum(process.poll() is None for process in processes) <= 1)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1, 1, 1], outputs
    assert all(("released" in output) == (code == 0) for output, code in zip(outputs, codes, strict=True))
    assert list(tmp_path.iterdir()) == []


def test_a_removed_file_is_made_again(tmp_path):
    lost = []
    lock = acquire(tmp_path, lost=lost.append)
    (tmp_path / workdir_lock.LOCK).unlink()
    until((tmp_path / workdir_lock.LOCK).exists, 30)
    lock.release()
    assert lost == [] and list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_not_left_empty(tmp_path):
    """As on a full disk: no file may be longer than 0 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            acquire(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
