"""The rendezvous: all workers connect over TCP and compare versions and config before TensorFlow starts.

TensorFlow waits more than ten minutes for a missing worker and ignores signals. The rendezvous ends at a deadline and
names the missing workers. Each worker listens at its own address and connects to rank 0 and a few others, or to all in
a small job: a short connection for each pair and direction. Each reports to rank 0 which workers it could not connect
to; rank 0 compares the workers' values, decides (decision.py), and sends the decision to all. Imports no TensorFlow.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import pathlib
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.rendezvous import alone, decision, protocol, rpc
from tfdist.cluster.rendezvous.protocol import RendezvousState
from tfdist.cluster.wire import keys as keys_lib
from tfdist.cluster.wire import listener as listener_lib
from tfdist.cluster.wire.keys import Keys

# Seconds after the deadline in which rank 0 accepts reports of workers that started at about the same time.
_REPORT_SECONDS = 0.7
# Seconds after the deadline in which a worker waits for the decision.
_DECISION_SECONDS = 1.5
# Seconds of waiting after which a line says which workers are missing.
_SAID_AFTER = (5.0, 30.0)
# Seconds in which a worker that cannot join announces it to the others.
_FAREWELL_SECONDS = 5.0
# Seconds that a network file system may take to show a new file.
_WORKDIR_SECONDS = 10.0


def rendezvous(
    spec: WorkerSpec,
    *,
    must_match: Mapping[str, str],
    seconds: float,
    metadata: Mapping[str, Any] | None = None,
    exclusive: Sequence[str] = (),
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
    keys: Keys | None = None,
) -> list[dict[str, Any]]:
    """Waits until all workers are connected and their values match; every worker calls it before TensorFlow starts.

    Afterwards the worker's port is free again. If one worker fails, all running workers raise the same error, at most
    about two seconds after `seconds`.

    Args:
        spec: rank, world size and addresses of this worker.
        must_match: name -> value that must be equal on all workers, such as a version.
        seconds: time limit of the rendezvous.
        metadata: JSON values that may differ; all workers receive them.
        exclusive: names of resources that only one worker of a host may use, such as its GPUs.
        workdir: a directory that all workers must share; rank 0 creates it. None: not checked.
        stop: this worker's stop request, which is sent to the others. None: it cannot be stopped.
        keys: what signs the messages; None: `keys.load`.

    Returns:
        One dict per worker in rank order: `rank`, `address` ("host:port", also if `spec` has no addresses), `host` (the
        machine's own name), `pid`, and the items of `metadata`.

    Raises:
        StopError: a worker received a stop request.
        TimeoutError: workers are missing or cannot connect to each other; lists ranks, addresses and reasons.
        ValueError: `must_match` values differ, two workers use the same resource, or there is no key; lists ranks and
            values.
        FileNotFoundError: workdir is not the same directory on all workers.
        OSError: a worker's port is in use, or rank 0 cannot write to workdir.
    """
    metadata = dict(metadata or {})
    if spec.num_workers == 1:
        return alone.members(spec, metadata, stop)
    stop = stop or interruption.StopRequest()
    me = {"host": socket.gethostname(), "pid": os.getpid(), "metadata": metadata}
    me |= {"must_match": dict(must_match), "exclusive": list(exclusive)}
    json.dumps(me)  # Raises if a value is not JSON.
    shared = local_path(workdir)
    listener_lib.raise_descriptor_limit()
    try:
        return rpc.wait_for(_rendezvous(spec, keys or keys_lib.load(shared, os.environ), me, seconds, shared, stop))
    finally:
        if shared is not None:
            keys_lib.remove_from_workdir(shared)


def local_path(workdir: os.PathLike | str | None) -> pathlib.Path | None:
    """Returns the absolute path of `workdir`, since workers may start in different directories; None: there is none."""
    return pathlib.Path(os.path.abspath(workdir)) if workdir else None


async def _rendezvous(
    spec: WorkerSpec, keys: Keys, me: dict, seconds: float, workdir: pathlib.Path | None, stop: interruption.StopRequest
) -> list[dict]:
    state = RendezvousState(
        spec=spec,
        keys=keys,
        me=me,
        seconds=seconds,
        deadline=protocol.now() + seconds,
        addresses=list(spec.addresses),
        nonce=secrets.token_hex(8),
    )
    chief = spec.rank == 0
    with contextlib.ExitStack() as stack:
        try:
            address = await rpc.in_thread(listener_lib.own_address, spec)
            listener = stack.enter_context(listener_lib.listen(spec.port, address))
        except OSError as error:
            state.port_in_use = error.errno == errno.EADDRINUSE and spec.launcher != "tf_config"
            await _leave(state, await _explain_port(state, error))
        if chief and workdir:
            try:
                stack.enter_context(_token_file(workdir, state.nonce))
            except OSError as error:
                await _leave(state, f"workdir cannot be written: {error.strerror}. Received: {str(workdir)!r}")
        async with listener_lib.serving(listener, keys, functools.partial(protocol.handle_request, state)):
            watching = [asyncio.ensure_future(_notice_stop(state, stop)), asyncio.ensure_future(_say_awaited(state))]
            await (_run_rank_0(state) if chief else _run_other_rank(state, workdir))
            for task in watching:
                task.cancel()
            if state.stopped:
                await _stop(state)
        if chief:
            # After the port is closed: a worker with the decision starts TensorFlow, which connects to this port.
            unreached = await protocol.notify_all(
                state, "decision", insist=bool(state.stopped), decision=state.decision
            )
            if unreached and "members" in state.decision:
                lost = dict.fromkeys(unreached, "it connected, then stopped responding")
                state.decision = decision.missing(lost, state.addresses, seconds)
    return decision.members_or_raise(state.decision)


async def _notice_stop(state: RendezvousState, stop: interruption.StopRequest) -> None:
    while stop.reason is None:
        await asyncio.sleep(0.2)
    state.stopped = stop.reason
    state.changed.set()


async def _say_awaited(state: RendezvousState) -> None:
    """Says after some seconds which workers are missing, and why; a refused port is normal before a worker starts.

    Rank 0 names all of them, the others only rank 0.
    """
    begin, spec = protocol.now(), state.spec
    for seconds in _SAID_AFTER:
        await asyncio.sleep(begin + seconds - protocol.now())
        absent = {rank: reason for rank, reason in state.unreached.items() if reason and 0 in (rank, spec.rank)}
        if spec.rank == 0 and not state.addresses:
            absent = dict.fromkeys(set(range(1, spec.num_workers)) - set(state.received.arrivals), "no message yet")
        if absent and not state.over:
            line = decision.describe_awaited(absent, spec.num_workers, state.addresses, state.seconds)
            print(f"tfdist: {line}", file=sys.stderr, flush=True)


async def _stop(state: RendezvousState) -> None:
    """Announces a stop request to the others; an earlier decision of rank 0 remains valid."""
    rank = state.spec.rank
    limit = protocol.now() + _FAREWELL_SECONDS

    def has_decision() -> bool:
        return state.decision is not None

    while rank and state.addresses and not has_decision() and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(state, 0, protocol.report(state))
            await protocol.until(state, has_decision, protocol.now() + _DECISION_SECONDS)
            break
        await protocol.until(state, has_decision, protocol.now() + 0.2)
    if rank == 0 or not has_decision():
        state.decision = decision.decide_stop({rank: state.stopped}, state.addresses)


async def _run_rank_0(state: RendezvousState) -> None:
    """Rank 0: collects all reports, including its own, and decides."""
    size = state.spec.num_workers
    if not state.addresses:
        if not await protocol.until(state, lambda: len(state.received.arrivals) == size, state.deadline):
            state.decision = decision.not_arrived(state.received.arrivals, size, state.seconds)
            return
        state.addresses = [state.received.arrivals[rank] for rank in range(size)]
        await protocol.notify_all(state, "addresses", addresses=state.addresses)
    await protocol.connect(state)
    state.received.note_report(0, protocol.report(state))

    def complete() -> bool:
        return len(state.received.reports) == size

    await protocol.until(state, lambda: complete() or state.over, state.deadline + _REPORT_SECONDS)
    # If one worker gives up, others that started with it do so at about the same time.
    await protocol.until(state, complete, min(protocol.now(), state.deadline) + _REPORT_SECONDS)
    state.decision = decision.decide(state.received.hellos, state.received.reports, state.addresses, state.seconds)


async def _run_other_rank(state: RendezvousState, workdir: pathlib.Path | None) -> None:
    """Other ranks: connect to all, report to rank 0, and wait for its decision."""
    if not state.addresses:
        await _arrive(state)
    if not state.over:
        await protocol.connect(state)
    if state.failed and not state.over:
        await _report_failure(state)
        return
    unseen = ""
    if workdir and not state.over and not state.unreached:
        unseen = await _wait_for_token(state, workdir)
    # The reason why rank 0 is lost; "" as long as it is not.
    lost = state.unreached.get(0, "")
    while not state.over and not lost:
        try:
            await protocol.call(state, 0, protocol.report(state, unseen))
            break
        except rpc.UnreachableError as error:
            lost = str(error) if protocol.now() > state.deadline else ""
            await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    # Rank 0 closes its port before it sends the decision.
    limit = max(protocol.now(), state.deadline) + _DECISION_SECONDS + protocol.size_seconds(state.spec.num_workers)
    await protocol.until(state, lambda: state.over or 0 in state.unreached, limit)
    while not state.over and not lost:
        # Rank 0 may have started later than this worker: as long as it responds, it decides at its own deadline.
        try:
            await protocol.call(state, 0, protocol.message(state, "who"))
        except rpc.UnreachableError as error:
            lost = str(error)
        await protocol.until(state, lambda: state.over, protocol.now() + 1.0)
    if not state.over:
        state.decision = decision.missing(state.unreached | {0: lost}, state.addresses, state.seconds)


async def _arrive(state: RendezvousState) -> None:
    """Sends this worker's port to rank 0, if the launcher provides no addresses, and waits for all addresses."""
    reasons: dict[str, str] = {}

    def known() -> bool:
        return bool(state.addresses) or state.over

    found = False
    # As in `_run_other_rank`: a rank 0 that responds decides, even after this worker's own deadline.
    while not known() and (found or protocol.now() < state.deadline):
        found = False
        for chief in state.spec.chiefs:
            dialled, _ = hostlist.split_address(chief)
            try:
                arrival = protocol.message(state, "arrive", port=state.spec.port, dialled=dialled, to=0)
                reply = await rpc.request(chief, arrival, state.keys)
                protocol.verify(state, reply, 0)
                found = True
                break
            except rpc.UnreachableError as error:
                reasons[chief] = str(error)
        state.unreached = {} if found else {0: "; ".join(f"{at}: {why}" for at, why in reasons.items())}
        await protocol.until(state, known, protocol.now() + (1.0 if found else 0.3))
    if not known():
        state.decision = decision.no_chief(reasons, state.seconds)


async def _leave(state: RendezvousState, failed: str) -> None:
    """Announces to the others why this worker cannot join, and raises the error."""
    state.failed = failed
    if state.spec.rank == 0:
        state.decision = decision.failure({0: failed}, state.addresses, port_in_use=state.port_in_use)
        await protocol.notify_all(state, "decision", insist=True, decision=state.decision)
    else:
        await _report_failure(state)
    decision.members_or_raise(state.decision)


async def _report_failure(state: RendezvousState) -> None:
    """Reports to rank 0, if it responds soon, why this worker cannot join; this is also its own decision."""
    limit = min(protocol.now() + _FAREWELL_SECONDS, max(protocol.now(), state.deadline) + 1.0)
    while state.addresses and not state.over and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(state, 0, protocol.report(state))
            break
        await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    failed = {state.spec.rank: state.failed}
    state.decision = decision.failure(failed, state.addresses, port_in_use=state.port_in_use)


async def _explain_port(state: RendezvousState, error: OSError) -> str:
    port = state.spec.port
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be opened: {error.strerror}"
    who = "another program is listening on it"
    try:
        address = (state.addresses or [f"localhost:{port}"] * state.spec.num_workers)[state.spec.rank]
        protocol.verify(state, await rpc.request(address, protocol.message(state, "who", to=-1), state.keys, 1.0), -1)
    except rpc.WrongPeerError as stranger:
        who = str(stranger).replace("listening there", "listening on it")
    except rpc.UnreachableError:
        pass
    advice = (
        "Restart all workers: a requeued Slurm job and a new job step have other ports. If they are in use again"
        if state.port_in_use
        else "If that program is not yours"
    )
    return (
        f"port {port} on host {state.me['host']} is in use: {who}. {advice}, choose other ports with "
        "config.cluster.port_base and port_count, or in TF_CONFIG's addresses"
    )


async def _wait_for_token(state: RendezvousState, workdir: pathlib.Path) -> str:
    """Waits for rank 0's token file; returns the path of workdir if it does not appear in time, else ""."""
    limit = min(protocol.now() + _WORKDIR_SECONDS, state.deadline)
    while not state.over:
        # In a thread: a network file system that hangs must not delay replies to other workers.
        seen = rpc.in_thread(_token(workdir, state.chief_nonce).exists)
        seen.add_done_callback(lambda _: state.changed.set())
        await protocol.until(state, lambda seen=seen: seen.done() or state.over, limit)
        if seen.done() and seen.exception() is None and seen.result():
            break
        if protocol.now() >= limit:
            return str(workdir)
        await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    return ""


@contextlib.contextmanager
def _token_file(workdir: pathlib.Path, nonce: str) -> Iterator[None]:
    """Creates workdir and a token file in it, which is removed at the end of the `with` block."""
    workdir.mkdir(parents=True, exist_ok=True)
    token = _token(workdir, nonce)
    token.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            token.unlink()


def _token(workdir: pathlib.Path, nonce: str) -> pathlib.Path:
    # A new name for each start: a network file system may cache that a file does not exist.
    return workdir / f".tfdist-{nonce}"
