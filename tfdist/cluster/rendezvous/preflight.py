"""All workers find each other over plain TCP, and compare notes, before TensorFlow starts. Imports no TensorFlow.

TensorFlow waits over ten minutes for a missing worker, deaf to signals. Here everything ends at a deadline, with names.
Each worker listens at its own address and calls all others: a short connection for each pair and direction, a few at a
time. Each reports to rank 0 whom it could not reach; rank 0 compares what the workers say of themselves, decides (see
verdict.py), and calls each of them with the verdict.
"""

import asyncio
import contextlib
import errno
import json
import os
import pathlib
import secrets
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.rendezvous import decision, protocol, rpc
from tfdist.cluster.rendezvous.protocol import RendezvousState

# Seconds after the deadline in which reports of workers that started at about the same time still come in.
_REPORT_SECONDS = 0.7
# Seconds after the deadline in which a worker expects the verdict.
_VERDICT_SECONDS = 1.5
# Seconds that a worker that cannot take part spends on telling the others so.
_FAREWELL_SECONDS = 5.0
# Seconds that a network file system may take to show a new file.
_WORKDIR_SECONDS = 10.0


def unset_proxies(env: MutableMapping[str, str]) -> list[str]:
    """Removes the proxy settings that gRPC would use between workers, and returns the names of those that were set."""
    names = [name for name in env if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")]
    for name in names:
        del env[name]
    return names


def rendezvous(
    spec: WorkerSpec,
    *,
    must_match: Mapping[str, str],
    seconds: float,
    metadata: Mapping[str, Any] | None = None,
    exclusive: Sequence[str] = (),
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
) -> list[dict[str, Any]]:
    """Waits until all workers have found each other and agree; every worker calls it before TensorFlow's server starts.

    Afterwards the worker's port is free again. Whatever is wrong with one worker is raised by all that are alive, in
    the same words, within `seconds` plus about two.

    Args:
        spec: this worker's place.
        must_match: name -> value of what must be equal on all workers, such as versions.
        seconds: how long the workers have to find each other.
        metadata: what may differ and is told to all; values as JSON knows them.
        exclusive: names of what only one worker of a host may hold, such as its GPUs.
        workdir: a directory that must be the same one for all workers; rank 0 makes it. None: not checked.
        stop: whether this worker is asked to stop; it then tells the others. None: it cannot be.

    Returns:
        One dict a worker in rank order: `rank`, `address` ("host:port", also where the spec had none), `host`
        (what the machine calls itself), `pid`, and the items of `metadata`.

    Raises:
        StopError: a worker was asked to stop.
        TimeoutError: workers are missing or cannot reach each other; names their ranks and addresses, and why.
        ValueError: `must_match` values differ, or two workers hold the same thing; names the ranks and the values.
        FileNotFoundError: workdir is not the same directory for all.
        OSError: a worker's port is taken, or rank 0 cannot write to workdir.
    """
    stop = stop or interruption.StopRequest()
    me = {"host": socket.gethostname(), "pid": os.getpid(), "metadata": dict(metadata or {})}
    if spec.num_workers == 1:
        if stop.reason is not None:
            decision.members_or_raise(decision.stopped({0: stop.reason}, spec.addresses))
        address = (spec.addresses or ("localhost",))[0]
        return [{"rank": 0, "address": address, "host": me["host"], "pid": me["pid"], **me["metadata"]}]
    me |= {"must_match": dict(must_match), "exclusive": list(exclusive)}
    json.dumps(me)  # What JSON cannot say must be noticed here.
    # Absolute, since the workers may have been started in different directories. "gs://bucket" is shared by nature.
    shared = pathlib.Path(os.path.abspath(workdir)) if workdir and "://" not in str(workdir) else None
    return rpc.run(_rendezvous(spec, me, seconds, shared, stop))


async def _rendezvous(
    spec: WorkerSpec, me: dict, seconds: float, workdir: pathlib.Path | None, stop: interruption.StopRequest
) -> list[dict]:
    state = RendezvousState(
        spec=spec,
        me=me,
        seconds=seconds,
        deadline=protocol.now() + seconds,
        addresses=list(spec.addresses),
        nonce=secrets.token_hex(8),
    )
    chief = spec.rank == 0
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(rpc.listen(spec.port))
        except OSError as error:
            await _leave(state, await _explain_port(state, error))
        if chief and workdir:
            try:
                stack.enter_context(_token_file(workdir, state.nonce))
            except OSError as error:
                await _leave(state, f"workdir cannot be written: {error.strerror}. Received: {str(workdir)!r}")
        async with rpc.serving(listener, lambda request, peer: protocol.handle_request(state, request, peer)):
            watching = asyncio.ensure_future(_notice_stop(state, stop))
            await (_run_rank_0(state) if chief else _run_other_rank(state, workdir))
            watching.cancel()
            if state.stopped:
                await _stop(state)
        if chief:
            # No longer listening: who has the verdict starts TensorFlow, which soon calls this very port.
            untold = await protocol.notify_all(state, "verdict", insist=bool(state.stopped), verdict=state.verdict)
            if untold and "members" in state.verdict:
                lost = dict.fromkeys(untold, "it connected, then stopped responding")
                state.verdict = decision.missing(lost, state.addresses, seconds)
    return decision.members_or_raise(state.verdict)


async def _notice_stop(state: RendezvousState, stop: interruption.StopRequest) -> None:
    while stop.reason is None:
        await asyncio.sleep(0.1)
    state.stopped = stop.reason
    state.changed.set()


async def _stop(state: RendezvousState) -> None:
    """Tells the others that this worker was asked to stop; where rank 0 has decided before, that holds."""
    rank = state.spec.rank
    limit = protocol.now() + _FAREWELL_SECONDS

    def decided() -> bool:
        return state.verdict is not None

    while rank and state.addresses and not decided() and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(state, 0, protocol.report(state))
            await protocol.until(state, decided, protocol.now() + _VERDICT_SECONDS)
            break
        await protocol.until(state, decided, protocol.now() + 0.2)
    if rank == 0 or not decided():
        state.verdict = decision.stopped({rank: state.stopped}, state.addresses)


async def _run_rank_0(state: RendezvousState) -> None:
    """Rank 0's part: gathers all reports, its own among them, and decides."""
    size = state.spec.num_workers
    if not state.addresses:
        if not await protocol.until(state, lambda: len(state.arrivals) == size, state.deadline):
            state.verdict = decision.not_arrived(state.arrivals, size, state.seconds)
            return
        state.addresses = [state.arrivals[rank] for rank in range(size)]
        await protocol.notify_all(state, "addresses", addresses=state.addresses)
    await protocol.connect_to_all(state)
    state.reports[0] = protocol.report(state)

    def complete() -> bool:
        return len(state.reports) == size

    await protocol.until(state, lambda: complete() or state.over, state.deadline + _REPORT_SECONDS)
    # When one worker gives up, others that started with it do so at about the same time.
    await protocol.until(state, complete, min(protocol.now(), state.deadline) + _REPORT_SECONDS)
    state.verdict = decision.decide(state.hellos, state.reports, state.addresses, state.seconds)


async def _run_other_rank(state: RendezvousState, workdir: pathlib.Path | None) -> None:
    """Every other rank's part: looks for all, reports to rank 0, and waits for its verdict."""
    if not state.addresses:
        await _arrive(state)
    if not state.over:
        await protocol.connect_to_all(state)
    if state.failed and not state.over:
        await _report_failure(state)
        return
    unseen = ""
    if workdir and not state.over and not state.unreached:
        unseen = await _miss_token(state, workdir)
    # Why rank 0 is lost, as soon as it is.
    lost = state.unreached.get(0, "")
    while not state.over and not lost:
        try:
            await protocol.call(state, 0, protocol.report(state, unseen))
            break
        except rpc.UnreachableError as error:
            lost = str(error) if protocol.now() > state.deadline else ""
            await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    await protocol.until(state, lambda: state.over or lost, max(protocol.now(), state.deadline) + _VERDICT_SECONDS)
    while not state.over and not lost:
        # Rank 0 may have started later than this worker: as long as it answers, it will decide at its own deadline.
        try:
            await protocol.call(state, 0, protocol.message(state, "who"))
        except rpc.UnreachableError as error:
            lost = str(error)
        await protocol.until(state, lambda: state.over, protocol.now() + 1.0)
    if not state.over:
        state.verdict = decision.missing(state.unreached | {0: lost}, state.addresses, state.seconds)


async def _arrive(state: RendezvousState) -> None:
    """Tells rank 0 this worker's port, where the launcher does not say who is where, and waits for all addresses."""
    reasons: dict[str, str] = {}

    def known() -> bool:
        return bool(state.addresses) or state.over

    found = False
    # As in `_follow`: a rank 0 that answers will decide, if need be after this worker's own deadline.
    while not known() and (found or protocol.now() < state.deadline):
        found = False
        for chief in state.spec.chiefs:
            dialled, _ = hostlist.split_address(chief)
            try:
                reply = await rpc.ask(chief, protocol.message(state, "arrive", port=state.spec.port, dialled=dialled))
                protocol.verify(state, reply, 0)
                found = True
                break
            except rpc.UnreachableError as error:
                reasons[chief] = str(error)
        await protocol.until(state, known, protocol.now() + (1.0 if found else 0.3))
    if not known():
        state.verdict = decision.no_chief(reasons, state.seconds)


async def _miss_token(state: RendezvousState, workdir: pathlib.Path) -> str:
    """Waits for rank 0's file in workdir; returns this worker's path of workdir if it does not appear."""
    limit = min(protocol.now() + _WORKDIR_SECONDS, state.deadline)
    while not state.over:
        # In a thread: a network file system that hangs must not hold up the calls of the other workers.
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
    """Makes workdir, and a file in it that other workers can look for; the file is gone afterwards."""
    workdir.mkdir(parents=True, exist_ok=True)
    token = _token(workdir, nonce)
    token.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            token.unlink()


def _token(workdir: pathlib.Path, nonce: str) -> pathlib.Path:
    # A name that nobody has asked a network file system for before: it could remember that there is no such file.
    return workdir / f".tfdist-{nonce}"


async def _leave(state: RendezvousState, failed: str) -> None:
    """Tells the others, who may be about to start, why this worker cannot take part, and raises it."""
    state.failed = failed
    if state.spec.rank == 0:
        state.verdict = decision.failure({0: failed}, state.addresses)
        await protocol.notify_all(state, "verdict", insist=True, verdict=state.verdict)
    else:
        await _report_failure(state)
    decision.members_or_raise(state.verdict)


async def _report_failure(state: RendezvousState) -> None:
    """Tells rank 0, if it can be found soon, why this worker cannot take part; that is its own verdict, too."""
    limit = min(protocol.now() + _FAREWELL_SECONDS, max(protocol.now(), state.deadline) + 1.0)
    while state.addresses and not state.over and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(state, 0, protocol.report(state))
            break
        await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    state.verdict = decision.failure({state.spec.rank: state.failed}, state.addresses)


async def _explain_port(state: RendezvousState, error: OSError) -> str:
    port = state.spec.port
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be opened: {error.strerror}"
    who = "another program is listening on it"
    try:
        protocol.verify(state, await rpc.ask(f"localhost:{port}", protocol.message(state, "who"), 1.0), -1)
    except protocol.WrongPeerError as stranger:
        who = str(stranger).replace("listening there", "listening on it")
    except rpc.UnreachableError:
        pass
    return (
        f"port {port} on host {state.me['host']} is in use: {who}. If that program is not yours, choose other ports "
        "with config.cluster.port_base and port_count, or in TF_CONFIG's addresses"
    )
