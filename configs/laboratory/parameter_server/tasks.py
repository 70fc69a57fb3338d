"""The tasks of TF_CONFIG (chief, workers, parameter servers): how they connect, and what happens when one is lost."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf
from absl import flags, logging

from tfdist import config as config_lib
from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist

_KINDS = ("chief", "worker", "ps")
_POLL_SECONDS = 0.5
# A task is lost after this many failed connections in a row.
_FAILED_POLLS = 3
# Seconds that an error of TensorFlow waits for `exit_when_lost` to name the lost task.
_NAME_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The task of this process, and the addresses of all tasks."""

    # "chief", "worker" and "ps" -> "host:port" of each.
    addresses: Mapping[str, Sequence[str]]
    kind: str
    index: int

    def remote(self) -> dict[str, str]:
        """The workers and parameter servers: a name such as "worker 1" -> "host:port"."""
        kinds = ("worker", "ps")
        return {f"{kind} {i}": address for kind in kinds for i, address in enumerate(self.addresses[kind])}


def are_listed(env: Mapping[str, str]) -> bool:
    """Returns True if TF_CONFIG is set: the tasks are started by the user, not by this process."""
    return bool(env.get("TF_CONFIG"))


def task_spec(env: MutableMapping[str, str]) -> TaskSpec:
    """Reads TF_CONFIG and removes it from `env`: the chief then trains as a single process.

    Raises:
        ValueError: it is not set, or does not list a chief, workers and parameter servers.
    """
    text = env.get("TF_CONFIG", "")
    try:
        given = json.loads(text or "{}")
        addresses = {kind: list(given["cluster"][kind]) for kind in _KINDS}
        kind, index = given["task"]["type"], int(given["task"]["index"])
        if len(addresses["chief"]) != 1 or not addresses["worker"] or not addresses["ps"]:
            raise ValueError("one chief and at least one of the others")
        for address in (addresses[kind][index], *addresses["chief"], *addresses["worker"], *addresses["ps"]):
            hostlist.split_address(address)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            "asynchronous training needs a chief, workers and parameter servers: start python -m tfdist asynchronous "
            "without TF_CONFIG to start all of them on this machine, or once for each task with a TF_CONFIG that has "
            f"cluster.chief, cluster.worker, cluster.ps and the task ({type(error).__name__}: {error}). "
            f"Received: TF_CONFIG={text!r}"
        ) from None
    del env["TF_CONFIG"]
    return TaskSpec(addresses=addresses, kind=kind, index=index)


def serve(mine: TaskSpec) -> None:
    """Runs TensorFlow's server of a worker or parameter server until the process is killed; never returns."""
    _prepare(os.environ)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A server has nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the chief.
    specification = tf.train.ClusterSpec(mine.addresses)
    tf.distribute.Server(specification, job_name=mine.kind, task_index=mine.index, protocol="grpc").join()


def connect(
    mine: TaskSpec, seconds: float, check: Callable[[], None] = lambda: None
) -> tuple[tf.distribute.Strategy, Any]:
    """Waits until workers and parameter servers listen; returns the chief's (strategy, coordinator).

    Args:
        mine: the chief's task.
        seconds: how long to wait.
        check: called while waiting; may raise an error to stop.

    Raises:
        TimeoutError: some did not listen within `seconds`; contains their addresses.
    """
    _prepare(os.environ)
    deadline = time.monotonic() + seconds
    missing = list(mine.remote().values())
    while missing := [address for address in missing if not _listens(address)]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(missing)} worker(s) or parameter server(s) did not start within {seconds:.0f} s "
                f"(config.cluster.connect_seconds): {', '.join(missing)}. Start them, or check their logs for errors."
            )
        check()
        time.sleep(_POLL_SECONDS)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(mine.addresses), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    if flags.FLAGS.verbosity < logging.DEBUG:  # TensorFlow logs the configuration of the session.
        logging.set_verbosity(logging.WARNING)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


@dataclasses.dataclass(slots=True, kw_only=True)
class Progress:
    """Notes since when the chief has been waiting for an update."""

    # A value of `time.monotonic`; None: the chief is not waiting.
    since: float | None = None
    # True as soon as an update has ended.
    started: bool = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """In the block, the chief counts as waiting for updates."""
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = None

    def note_update(self) -> None:
        """Notes that an update has ended."""
        self.since, self.started = time.monotonic(), True

    def describe_stall(self, options: config_lib.ClusterOptions) -> str:
        """Returns what is wrong if an update takes longer than it may, otherwise ""."""
        field = "stall_seconds" if self.started else "first_stall_seconds"
        since, limit = self.since, getattr(options, field)
        if since is None or limit is None or time.monotonic() - since < limit:
            return ""
        return f"no update has ended for {limit:g} s (config.cluster.{field}): a task is stopped, or its host is down"


@contextlib.contextmanager
def exit_when_lost(
    mine: TaskSpec, options: config_lib.ClusterOptions, record: Callable[[str], None]
) -> Iterator[Progress]:
    """During the block, exits this process with code 76 when a worker or parameter server no longer listens.

    TensorFlow would wait up to an hour for a worker to return, and does not always recover when it does. Yields the
    chief's progress: the process also exits when an update takes longer than `options` allow.

    Args:
        mine: the chief's task.
        options: the time limits.
        record: called with the reason before the exit.
    """
    finished, progress = threading.Event(), Progress()

    def poll() -> None:
        failed = dict.fromkeys(mine.remote(), 0)
        while not finished.wait(_POLL_SECONDS):
            for name, address in mine.remote().items():
                failed[name] = 0 if _listens(address) else failed[name] + 1
                if failed[name] >= _FAILED_POLLS and not finished.is_set():
                    _exit_lost(f"{name} ({address}) is lost", record)
            if stall := progress.describe_stall(options):
                _exit_lost(stall, record)

    thread = threading.Thread(target=poll, name="tfdist-tasks", daemon=True)
    thread.start()
    try:
        yield progress
    except tf.errors.OpError:
        thread.join(_NAME_SECONDS)  # If a task is lost, the thread exits the process here.
        raise
    finally:
        finished.set()


def _exit_lost(text: str, record: Callable[[str], None]) -> None:
    print(f"tfdist: {text}. Restart all tasks to resume from the newest checkpoint.", file=sys.stderr)
    interruption.within(_NAME_SECONDS, lambda: record(text))  # The workdir may hang.
    interruption.end_process(interruption.EXIT_PEER_LOST)  # TensorFlow's shutdown would wait for the lost task.


def _prepare(env: MutableMapping[str, str]) -> None:
    env["grpc_proxy"] = ""  # gRPC connects tasks without a proxy.
    env["GRPC_FAIL_FAST"] = "use_caller"  # Calls to a lost task fail instead of waiting.


def _listens(address: str) -> bool:
    try:
        with socket.create_connection(hostlist.split_address(address), timeout=5):
            return True
    except OSError:
        return False
