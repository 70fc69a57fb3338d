"""One run per workdir: `workdir/.tfdist-run` names the run that writes there. Imports no TensorFlow.

The chief creates the file with O_EXCL and rewrites it at each heartbeat. While the run is alive, a second run is
refused. If it is dead, the next run takes over the workdir. A run on this machine is dead if its process no longer
exists. A run on another machine is dead if the file's time does not change while the next run waits for
`_DEAD_HEARTBEATS` heartbeats, so no clocks are compared. File locks are not used: network file systems may not support
them, or may keep the locks of a dead host.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tfdist.report import files

LOCK = ".tfdist-run"
# Number of missed heartbeats after which a run on another machine is dead.
_DEAD_HEARTBEATS = 3
# Seconds between two reads of another run's file.
_POLL_SECONDS = 0.5


class WorkdirInUseError(OSError):
    """Another run writes to this workdir; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The run that holds a workdir."""

    # Id of its batch job; "" without one.
    job: str = ""
    host: str = "an unknown host"
    pid: int = 0
    # Boot and process namespace in which `pid` is valid; "" if unknown.
    machine: str = ""
    # When the process started, in clock ticks since boot.
    start: str = ""
    # When the run acquired the workdir, in seconds since 1970.
    since: float = 0.0
    # Interval of the heartbeats.
    heartbeat_seconds: float = 10.0
    nonce: str = "unreadable"

    def __str__(self) -> str:
        job = f"job {self.job}, " if self.job else ""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{job}host {self.host}, process {self.pid}, since {when}"


# The owner of an incomplete file: the process that wrote it was killed.
_UNREADABLE = Owner()


class WorkdirLock:
    """The lock that `acquire` returned: updates its file in a thread until `release`.

    Args:
        lost: called in the thread with the name of another run that has taken over the workdir.
    """

    def __init__(self, path: Path, owner: Owner, lost: Callable[[str], None]):
        self._path, self._owner, self._lost = path, owner, lost
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="tfdist-workdir", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Removes the file, if it is still this run's."""
        self._released.set()
        with contextlib.suppress(OSError), files.waiting(self._path):
            self._thread.join(self._owner.heartbeat_seconds)  # Not longer: the file system may hang.
            found = _read(self._path)
            if found is not None and found[0].nonce == self._owner.nonce:
                self._path.unlink()

    def _send_heartbeats(self) -> None:
        while not self._released.wait(self._owner.heartbeat_seconds):
            with contextlib.suppress(OSError):  # The file system is not available.
                found = _read(self._path, touch=self._owner.nonce)
                if found is None and not self._released.is_set():  # Removed by hand, or with the whole workdir.
                    _create(self._path, self._owner)
                if found is not None and found[0].nonce != self._owner.nonce:
                    self._lost(str(found[0]))
                    return


def acquire(
    workdir: Path,
    *,
    job: str,
    heartbeat_seconds: float,
    wait_seconds: float,
    lost: Callable[[str], None],
    log: Callable[[str], None],
) -> WorkdirLock:
    """Makes this process the only one that writes to `workdir`, which is created if needed.

    Args:
        job: id of the batch job, "" without one. A requeued job may start while its processes on another host are still
            saving.
        wait_seconds: time limit of the wait for another run of the same job, or to find out whether a run on another
            machine is dead.
        lost: called in a thread if another run takes over the workdir, because this one was suspended for a long time.
        log: called with a log line about a wait, and about a dead run.

    Raises:
        WorkdirInUseError: another run is alive, or not known to be dead after `wait_seconds`; or the file is a link, a
            pipe or a directory.
    """
    files.make_workdir(workdir)
    path, mine = workdir / LOCK, _this_process(job, heartbeat_seconds)
    started, seen, alive = time.monotonic(), None, False
    while not _create(path, mine):
        found = _read(path)
        if found is None:  # Released between the two calls.
            continue
        holder, is_new = found[0], seen is None or found[0] != seen[0]
        if found != seen:
            seen, since, alive = found, time.monotonic(), not is_new
        dead = time.monotonic() - since > _DEAD_HEARTBEATS * holder.heartbeat_seconds
        if holder.machine and holder.machine == mine.machine:
            alive = _is_running(holder)
            dead = not alive
        if dead and _take_over(path, holder, mine):
            log(f"took over {workdir} from a run that no longer exists: {holder}")
            break
        same_job = job != "" and holder.job == job
        # A run on another machine may be known to be dead only after the limit.
        until_dead = 0.0 if alive else _DEAD_HEARTBEATS * holder.heartbeat_seconds + 2 * _POLL_SECONDS
        waited = time.monotonic() - started
        if (alive and not dead and not same_job) or waited > max(wait_seconds, until_dead):
            raise WorkdirInUseError(
                f"{workdir} is in use by another run: {holder}. Stop that run, or choose another workdir; if there is "
                f"no such run, remove {path}*."
            )
        if is_new:
            log(f"waiting for the run that holds {workdir}: {holder}")
        time.sleep(_POLL_SECONDS)
    return WorkdirLock(path, mine, lost)


def owner(workdir: Path) -> Owner | None:
    """Returns the run that holds a workdir, alive or dead; None: no run does, or the file cannot be read."""
    try:
        found = _read(workdir / LOCK)
    except OSError:
        return None
    return None if found is None else found[0]


def is_alive(workdir: Path, holder: Owner) -> bool:
    """Returns whether the run that holds a workdir is alive; does not wait or write.

    A run on another machine is alive if its file is at most `_DEAD_HEARTBEATS` heartbeats old by this machine's clock.
    """
    if holder.machine and holder.machine == _machine():
        return _is_running(holder)
    try:
        age = time.time() - (workdir / LOCK).stat().st_mtime
    except OSError:
        return False
    return age <= _DEAD_HEARTBEATS * holder.heartbeat_seconds


def _read(path: Path, touch: str = "") -> tuple[Owner, float] | None:
    """Returns the file's owner and time, or None without a file; rewrites the file if its nonce is `touch`.

    Raises:
        WorkdirInUseError: the path is a link, a pipe or a directory, which no run creates.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise WorkdirInUseError(f"{path} is not a file of tfdist, so no run can hold its workdir. Remove it.")
        # Opened each time: network file systems then read the current content and time from the server.
        with files.waiting(path), open(path, "r+b" if touch else "rb") as file:
            content = file.read()
            owner = _parse(content)
            if owner.nonce == touch:
                os.pwrite(file.fileno(), content, 0)  # Some file systems, such as gcsfuse, cannot set times.
            return owner, os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _parse(content: bytes) -> Owner:
    try:
        values = json.loads(content)
        owner = Owner(**{field.name: type(field.default)(values[field.name]) for field in dataclasses.fields(Owner)})
        time.localtime(owner.since)
    except Exception:  # A damaged file may hold anything: numbers of 400 digits, 100,000 brackets.
        return _UNREADABLE
    is_name = owner.nonce.isalnum() and len(owner.nonce) <= 64
    return owner if is_name and owner.heartbeat_seconds > 0 else _UNREADABLE


def _create(path: Path, owner: Owner) -> bool:
    """Creates the file; returns False if it exists. Of several processes, only one succeeds."""
    try:
        with files.waiting(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with files.waiting(path), open(descriptor, "wb") as file:
            file.write(_content(owner))
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # The disk is full: an empty file would look like the lock of an unknown run.
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return True


def _content(owner: Owner) -> bytes:
    return json.dumps(dataclasses.asdict(owner)).encode()


def _take_over(path: Path, dead: Owner, mine: Owner) -> bool:
    """Replaces the file of a dead run, unless another process has replaced it or is replacing it."""
    claim = path.with_name(f"{LOCK}.{dead.nonce}")  # Only its creator may replace the file of this dead run.
    if not _create(claim, mine):
        return False
    try:
        found = _read(path)
        if found is None or found[0].nonce != dead.nonce:
            return False
        files.replace_file(path, _content(mine))
        return True
    finally:
        with contextlib.suppress(OSError):
            claim.unlink()


def _is_running(owner: Owner) -> bool:
    """Returns whether the owner's process still exists on this machine; a newer process may have its pid."""
    return owner.start == _start_of(owner.pid)


def _start_of(pid: int) -> str:
    """Returns when a process started, in clock ticks since boot; "": it has ended."""
    try:
        # proc(5), fields 3 and 22. Field 2, the command in parentheses, may itself contain spaces and parentheses.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def _this_process(job: str, heartbeat_seconds: float) -> Owner:
    return Owner(
        job=job,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=_machine(),
        start=_start_of(os.getpid()),
        since=time.time(),
        heartbeat_seconds=float(heartbeat_seconds),
        nonce=secrets.token_hex(8),
    )


def _machine() -> str:
    """Returns the kernel's boot id and the pid namespace: hosts may have equal names, containers equal pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
