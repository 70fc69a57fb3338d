"""The rendezvous: all workers connect to rank 0 and compare versions and config before TensorFlow starts.

TensorFlow waits more than ten minutes for a missing worker and ignores signals. The rendezvous ends at a deadline and
names the missing workers. Each worker opens its port, so that no other program takes it, and connects to rank 0 only:

    to rank 0:  {"rank": 1, "host": ..., "must_match": {...}, ...}     its report: `me` in `rendezvous`, and `dialled`,
                                    the host name or address under which it has reached rank 0
    from it:    {"token": the name of a file in the workdir}
    to rank 0:  {"unseen": path of the workdir if it does not appear there, or ""}; {"stopped": "SIGTERM"}, at any time
    from it:    {"members": [...]} or {"error": ..., "message": ...}     its decision: decision.py

Imports no TensorFlow.
"""

import asyncio
import contextlib
import dataclasses
import errno
import functools
import ipaddress
import json
import os
import pathlib
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.control import decision, keys, listener, wire
from tfdist.cluster.control.keys import Key
from tfdist.cluster.control.wire import Channel
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Seconds of waiting after which a line of the log names the missing workers.
_LOG_AFTER_SECONDS = (5.0, 30.0)
# Time limit in seconds for a connection to rank 0, and for its first message.
_CONNECT_SECONDS = 10.0
# Seconds between two attempts: the first number or, in a large job, the second one times the number of workers.
_PAUSE_SECONDS, _PAUSE_PER_WORKER = 0.3, 1 / 256
# Seconds for a worker that cannot join the run, or must stop, to inform the others.
_FAREWELL_SECONDS = 5.0
# Time limit in seconds to send the decision, and additional seconds per worker.
_DECISION_SECONDS, _SECONDS_PER_WORKER = 10.0, 0.02
# How many copies of the decision are sent at once. Each copy lists all workers.
_AT_ONCE = 64
# Seconds that a network file system may take to show a new file.
_WORKDIR_SECONDS = 10.0
# Seconds between two checks of the stop request.
_LOOK_SECONDS = 0.5


def rendezvous(
    spec: WorkerSpec,
    *,
    must_match: Mapping[str, str],
    seconds: float,
    metadata: Mapping[str, Any] | None = None,
    exclusive: Sequence[str] = (),
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
    key: Key | None = None,
) -> list[dict[str, Any]]:
    """Waits until all workers are connected and their values match; every worker calls it, before TensorFlow starts.

    Afterwards the worker's port is free again. If one worker fails, all that are connected raise the same error.

    Args:
        spec: rank, world size and addresses of this worker.
        must_match: name -> value that must be equal on all workers, such as a version.
        seconds: time limit of the rendezvous.
        metadata: JSON values that may differ; all workers receive them.
        exclusive: names of resources that only one worker of a host may use, such as its GPUs.
        workdir: a directory that all workers must share; rank 0 creates it. None: not checked.
        stop: this worker's stop request, which ends the rendezvous on all workers. None: it cannot be stopped.
        key: signs the messages; None: `keys.load`.

    Returns:
        One dict per worker in rank order: `rank`, `address` ("host:port", also if `spec` has no addresses), `host` (the
        machine's own name), `pid`, and the items of `metadata`.

    Raises:
        StopError: a worker received a stop request.
        TimeoutError: workers are missing, or cannot connect to rank 0; lists ranks, addresses and reasons.
        ValueError: `must_match` values differ, two workers use the same resource, or there is no key; lists ranks and
            values.
        FileNotFoundError: workdir is not the same directory on all workers.
        OSError: a worker's port is in use, two workers have the same rank, or rank 0 cannot write to workdir.
    """
    path = None
    if workdir is not None:  # Workers may start in different directories.
        path = pathlib.Path(os.path.abspath(workdir))
    me = {
        "rank": spec.rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "metadata": dict(metadata or {}),
        "must_match": {"number of workers": str(spec.num_workers)} | dict(must_match),
        "exclusive": list(exclusive),
        "port": spec.port,
    }
    json.dumps(me)  # Raises if a value is not JSON.
    listener.raise_descriptor_limit()
    key = key or keys.load(spec.job, os.environ)
    with contextlib.ExitStack() as stack:
        failed, port_in_use = "", False
        try:
            own = stack.enter_context(listener.listen(spec.port))
        except OSError as error:
            own, port_in_use = None, error.errno == errno.EADDRINUSE and spec.launcher != "tf_config"
            failed = _explain_port(spec, error)
        me |= {"failed": failed, "port_in_use": port_in_use}
        known = {"spec": spec, "key": key, "me": me, "seconds": seconds, "stop": stop or interruption.StopRequest()}
        if spec.rank:
            found = _run(_Follower(**known).follow(own, path))
        elif own:
            found = _run(_Chief(**known).lead(own, path))
        else:
            found = decision.failure({0: failed}, spec.addresses, port_in_use=port_in_use)
    return decision.members_or_raise(found)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Worker:
    """What a worker knows before it connects."""

    spec: WorkerSpec
    key: Key
    # Its report to rank 0.
    me: dict[str, Any]
    seconds: float
    stop: interruption.StopRequest


@dataclasses.dataclass(slots=True, kw_only=True)
class _Chief(_Worker):
    """Rank 0, which collects the reports of all workers and decides."""

    # A new name for each start: a network file system may cache that a file does not exist.
    token: str = dataclasses.field(default_factory=lambda: f".tfdist-{secrets.token_hex(8)}")
    # rank -> report, as for `decision.decide`.
    workers: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    # The open connections; a worker closes its connection when it has read the decision.
    channels: set[Channel] = dataclasses.field(default_factory=set)
    # The encoded decision, and how many workers it was sent to.
    decision: bytes = b""
    told: int = 0
    # Set whenever anything above changes.
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def lead(self, own: socket.socket, workdir: pathlib.Path | None) -> dict[str, Any]:
        """Returns the decision, after sending it to the others."""
        spec, deadline = self.spec, _now() + self.seconds
        self._add(0, self.me)
        self._note(0, {"unseen": ""})
        file = workdir and workdir / self.token
        if file:
            try:
                workdir.mkdir(parents=True, exist_ok=True)
                file.touch()
            except OSError as error:
                reason = f"workdir cannot be written: {error.strerror}. Received: {str(workdir)!r}"
                self._note(0, {"failed": reason})
        try:
            async with listener.serving(own, self.key, self._serve):
                log_task = asyncio.ensure_future(_log_while_waiting(self._describe_awaited))
                while not self._is_complete() and _now() < deadline:
                    await self._until(self._is_complete, min(deadline, _now() + _LOOK_SECONDS))
                    if self.stop.reason:
                        self._note(0, {"stopped": self.stop.reason})
                log_task.cancel()
                made = decision.decide(self.workers, spec.addresses, spec.num_workers, self.seconds)
                self.decision = json.dumps(made).encode()
                await self._tell_all()
                # Workers that connect later would otherwise wait until their deadlines.
                if "error" in made and _now() < deadline:
                    await self._until(lambda: self.told >= spec.num_workers - 1, _now() + _FAREWELL_SECONDS)
        finally:
            if file:
                with contextlib.suppress(OSError):
                    file.unlink()
        return made

    async def _serve(self, channel: Channel, hello: dict[str, Any]) -> None:
        """Serves a worker until it closes the connection."""
        rank, failed = hello["rank"], hello["failed"]
        if not 0 < rank < self.spec.num_workers:
            raise ValueError(f"rank {rank} of {self.spec.num_workers}")
        if self.decision:
            self.told += 1
            channel.send(self.decision)
            self.changed.set()
            await channel.receive_all(lambda message: None)
        if not self.spec.addresses:
            hello["address"] = self._address(hello, channel.writer.get_extra_info("peername")[0])
        if first := self.workers.get(rank):
            self._note(rank, {"failed": decision.same_rank(rank, [first, hello])})
        else:
            self._add(rank, hello)
        self.channels.add(channel)
        channel.send({"token": self.token})
        try:
            await channel.receive_all(functools.partial(self._note, rank))
        finally:
            self.channels.discard(channel)
            if not (first or failed or self.decision):  # It has died; perhaps it is restarted.
                del self.workers[rank]
            self.changed.set()

    def _add(self, rank: int, worker: dict[str, Any]) -> None:
        if worker["must_match"] == self.me["must_match"]:
            worker["must_match"] = self.me["must_match"]  # One copy for a thousand workers.
        self.workers[rank] = {"address": "", "stopped": "", "unseen": None} | worker
        self.changed.set()

    def _note(self, rank: int, message: dict[str, Any]) -> None:
        self.workers[rank] |= message
        self.changed.set()

    def _is_complete(self) -> bool:
        """Returns whether all reports are complete, or a worker cannot join or must stop."""
        found = self.workers.values()
        if any(worker["failed"] or worker["stopped"] for worker in found):
            return True
        return len(found) == self.spec.num_workers and all(worker["unseen"] is not None for worker in found)

    def _address(self, worker: dict[str, Any], peer: str) -> str:
        """Derives a worker's address from its connection, and rank 0's from the host that the worker has dialled."""
        host = peer.removeprefix("::ffff:")  # A dual-stack socket writes IPv4 addresses like this.
        near = ipaddress.ip_address(host.partition("%")[0]).is_loopback
        if not near or not self.workers[0]["address"]:
            self.workers[0]["address"] = hostlist.join_address(worker["dialled"], self.spec.port)
        # A worker on rank 0's host may connect from 127.0.0.1, which other hosts cannot use.
        return hostlist.join_address(worker["dialled"] if near else host, worker["port"])

    async def _tell_all(self) -> None:
        """Sends the decision to all connected workers, a few at a time, and waits until they have read it."""
        limit, sent = _now() + _DECISION_SECONDS + _SECONDS_PER_WORKER * self.spec.num_workers, set()
        for channel in list(self.channels):
            await self._until(lambda: len(sent & self.channels) < _AT_ONCE, limit)
            channel.send(self.decision)
            sent.add(channel)
        self.told += len(sent)
        await self._until(lambda: not sent & self.channels, limit)

    async def _until(self, condition: Callable[[], bool], moment: float) -> None:
        """Waits until something makes `condition` true, or until `moment`."""
        while not condition() and _now() < moment:
            self.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), moment - _now())

    def _describe_awaited(self) -> str:
        size = self.spec.num_workers
        absent = [rank for rank in range(size) if rank not in self.workers]
        return decision.describe_awaited(absent, self.spec.addresses, size, self.seconds) if absent else ""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Follower(_Worker):
    """Any other worker, which sends its report to rank 0 and waits for the decision."""

    # Address tried -> why there is no connection; empty while there is one.
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)

    async def follow(self, own: socket.socket | None, workdir: pathlib.Path | None) -> dict[str, Any]:
        """Returns rank 0's decision; if that does not arrive in time, a decision of this worker."""
        spec, begin, leaves = self.spec, _now(), None
        tasks = [asyncio.ensure_future(_log_while_waiting(self._describe_awaited))]
        tasks += [asyncio.ensure_future(_refuse_all(own))] if own else []
        while True:
            for chief in spec.addresses[:1] or spec.chiefs:
                try:
                    return await self._attempt(chief, workdir)
                except (OSError, ValueError, EOFError, asyncio.TimeoutError) as error:
                    # Rank 0 may have just ended: the earlier reason says more.
                    if not (isinstance(error, ConnectionRefusedError) and chief in self.reasons):
                        self.reasons[chief] = _explain(error)
            if self.stop.reason or self.me["failed"]:
                leaves = leaves or _now() + _FAREWELL_SECONDS
                if _now() > leaves and self.stop.reason:
                    return decision.stop({spec.rank: self.stop.reason}, spec.addresses)
                if _now() > leaves:
                    failed = {spec.rank: self.me["failed"]}
                    return decision.failure(failed, spec.addresses, port_in_use=self.me["port_in_use"])
            if _now() > begin + self.seconds:
                return decision.no_chief(self.reasons, self.seconds)
            await asyncio.sleep(max(_PAUSE_SECONDS, _PAUSE_PER_WORKER * spec.num_workers))

    async def _attempt(self, chief: str, workdir: pathlib.Path | None) -> dict[str, Any]:
        """Connects to rank 0, and stays connected until its decision."""
        host, port = hostlist.split_address(chief)
        seconds = min(_CONNECT_SECONDS, self.seconds)
        channel = await asyncio.wait_for(wire.connect((host, port), self.key), seconds)
        try:
            channel.send(self.me | {"dialled": host})
            message = await asyncio.wait_for(channel.receive(), seconds)
            if "token" in message:
                self.reasons = {}
                told = {"unseen": await self._look_for(workdir, message["token"])}
                channel.send(told | ({"stopped": self.stop.reason} if self.stop.reason else {}))
                message = await self._await_decision(channel)
            return message
        finally:
            channel.close()

    async def _look_for(self, workdir: pathlib.Path | None, token: str) -> str:
        """Waits for rank 0's file; returns the path of workdir if it does not appear in time, else ""."""
        limit = _now() + min(_WORKDIR_SECONDS, self.seconds / 2)
        # With a time limit, because a network file system may hang.
        while workdir and not interruption.within(_LOOK_SECONDS, lambda: os.path.exists(workdir / token)):
            if _now() > limit or self.stop.reason:
                return str(workdir)
            await asyncio.sleep(0.2)
        return ""

    async def _await_decision(self, channel: Channel) -> dict[str, Any]:
        """Waits for the decision. Rank 0 may have started later, and decides at its own deadline."""
        limit, asked = _now() + self.seconds + 2 * _CONNECT_SECONDS, False
        while _now() < limit:
            if self.stop.reason and not asked:
                asked, limit = True, _now() + _FAREWELL_SECONDS
                channel.send({"stopped": self.stop.reason})
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(channel.receive(), _LOOK_SECONDS)
        raise asyncio.TimeoutError

    def _describe_awaited(self) -> str:
        reasons = "; ".join(f"rank 0 ({chief}): {reason}" for chief, reason in self.reasons.items())
        return f"waiting up to {self.seconds:g} s for a connection to {reasons}" if reasons else ""


def _explain(error: Exception) -> str:
    """Returns why there is no connection to rank 0."""
    if isinstance(error, asyncio.TimeoutError):
        return "no answer (blocked by a firewall?)"
    if isinstance(error, socket.gaierror):
        return f"its host name cannot be resolved ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return "nothing is listening there (connection refused)"
    if isinstance(error, wire.RefusedError):
        return (
            "a worker of another job, or with another key, is listening there (workers of a job share TFDIST_KEY or "
            "the home directory)"
        )
    if isinstance(error, EOFError):
        return "the connection was closed"
    if isinstance(error, ValueError):
        return "a program other than rank 0 of this job is listening there"
    return getattr(error, "strerror", None) or str(error)


def _explain_port(spec: WorkerSpec, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"port {spec.port} cannot be opened: {error.strerror}"
    return (
        f"port {spec.port} on host {socket.gethostname()} is in use: another program is listening on it. Restart all "
        "workers: a requeued Slurm job and a new job step have other ports; or choose others with "
        "config.cluster.port_base and port_count, or in TF_CONFIG's addresses"
    )


async def _refuse_all(own: socket.socket) -> None:
    """Closes all incoming connections: this worker, which is not rank 0, only reserves its port."""
    own.setblocking(False)
    while True:
        with contextlib.suppress(OSError):
            connection, _ = await asyncio.get_running_loop().sock_accept(own)
            connection.close()


async def _log_while_waiting(describe: Callable[[], str]) -> None:
    """After some seconds, prints what this worker is waiting for; before that, refused connections are normal."""
    begin = _now()
    for seconds in _LOG_AFTER_SECONDS:
        await asyncio.sleep(begin + seconds - _now())
        if line := describe():
            print(f"tfdist: {line}", file=sys.stderr, flush=True)


def _now() -> float:
    """Seconds on the event loop's clock."""
    return asyncio.get_running_loop().time()


def _run(coroutine: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Runs a coroutine in a thread; the calling thread wakes up for signal handlers, and may have an event loop."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)

    def work() -> None:
        loop.run_until_complete(asyncio.wait([task]))
        others = asyncio.all_tasks(loop)
        for other in others:
            other.cancel()
        if others:
            loop.run_until_complete(asyncio.wait(others))
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.5)
    except BaseException:
        with contextlib.suppress(RuntimeError):  # It has just ended.
            loop.call_soon_threadsafe(task.cancel)
        thread.join(2.0)
        raise
    return task.result()
