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
    placement: WorkerSpec,
    *,
    facts: Mapping[str, str],
    seconds: float,
    about: Mapping[str, Any] | None = None,
    holds: Sequence[str] = (),
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
) -> list[dict[str, Any]]:
    """Waits until all workers have found each other and agree; every worker calls it before TensorFlow's server starts.

    Afterwards the worker's port is free again. Whatever is wrong with one worker is raised by all that are alive, in
    the same words, within `seconds` plus about two.

    Args:
        placement: this worker's place.
        facts: name -> value of what must be equal on all workers, such as versions.
        seconds: how long the workers have to find each other.
        about: what may differ and is told to all; values as JSON knows them.
        holds: names of what only one worker of a host may hold, such as its GPUs.
        workdir: a directory that must be the same one for all workers; rank 0 makes it. None: not checked.
        stop: whether this worker is asked to stop; it then tells the others. None: it cannot be.

    Returns:
        One dict a worker in rank order: `rank`, `address` ("host:port", also where the placement had none), `host`
        (what the machine calls itself), `pid`, and the items of `about`.

    Raises:
        StopError: a worker was asked to stop.
        TimeoutError: workers are missing or cannot reach each other; names their ranks and addresses, and why.
        ValueError: facts differ, or two workers hold the same thing; names the ranks and the values.
        FileNotFoundError: workdir is not the same directory for all.
        OSError: a worker's port is taken, or rank 0 cannot write to workdir.
    """
    stop = stop or interruption.StopRequest()
    me = {"host": socket.gethostname(), "pid": os.getpid(), "about": dict(about or {})}
    if placement.num_workers == 1:
        if stop.reason is not None:
            decision.members_or_raise(decision.stopped({0: stop.reason}, placement.addresses))
        address = (placement.addresses or ("localhost",))[0]
        return [{"rank": 0, "address": address, "host": me["host"], "pid": me["pid"], **me["about"]}]
    me |= {"facts": dict(facts), "holds": list(holds)}
    json.dumps(me)  # What JSON cannot say must be noticed here.
    # Absolute, since the workers may have been started in different directories. "gs://bucket" is shared by nature.
    shared = pathlib.Path(os.path.abspath(workdir)) if workdir and "://" not in str(workdir) else None
    return rpc.run(_rendezvous(placement, me, seconds, shared, stop))


async def _rendezvous(
    placement: WorkerSpec, me: dict, seconds: float, workdir: pathlib.Path | None, stop: interruption.StopRequest
) -> list[dict]:
    met = RendezvousState(
        placement=placement,
        me=me,
        seconds=seconds,
        deadline=protocol.now() + seconds,
        addresses=list(placement.addresses),
        nonce=secrets.token_hex(8),
    )
    chief = placement.rank == 0
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(rpc.listen(placement.port))
        except OSError as error:
            await _leave(met, await _explain_port(met, error))
        if chief and workdir:
            try:
                stack.enter_context(_token_file(workdir, met.nonce))
            except OSError as error:
                await _leave(met, f"workdir cannot be written: {error.strerror}. Received: {str(workdir)!r}")
        async with rpc.serving(listener, lambda request, peer: protocol.handle_request(met, request, peer)):
            watching = asyncio.ensure_future(_notice_stop(met, stop))
            await (_run_rank_0(met) if chief else _run_other_rank(met, workdir))
            watching.cancel()
            if met.stopped:
                await _stop(met)
        if chief:
            # No longer listening: who has the verdict starts TensorFlow, which soon calls this very port.
            untold = await protocol.notify_all(met, "verdict", insist=bool(met.stopped), verdict=met.verdict)
            if untold and "roster" in met.verdict:
                lost = dict.fromkeys(untold, "it was there, and is no longer")
                met.verdict = decision.missing(lost, met.addresses, seconds)
    return decision.members_or_raise(met.verdict)


async def _notice_stop(met: RendezvousState, stop: interruption.StopRequest) -> None:
    while stop.reason is None:
        await asyncio.sleep(0.1)
    met.stopped = stop.reason
    met.changed.set()


async def _stop(met: RendezvousState) -> None:
    """Tells the others that this worker was asked to stop; where rank 0 has decided before, that holds."""
    rank = met.placement.rank
    limit = protocol.now() + _FAREWELL_SECONDS

    def decided() -> bool:
        return met.verdict is not None

    while rank and met.addresses and not decided() and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(met, 0, protocol.report(met))
            await protocol.until(met, decided, protocol.now() + _VERDICT_SECONDS)
            break
        await protocol.until(met, decided, protocol.now() + 0.2)
    if rank == 0 or not decided():
        met.verdict = decision.stopped({rank: met.stopped}, met.addresses)


async def _run_rank_0(met: RendezvousState) -> None:
    """Rank 0's part: gathers all reports, its own among them, and decides."""
    size = met.placement.num_workers
    if not met.addresses:
        if not await protocol.until(met, lambda: len(met.arrivals) == size, met.deadline):
            met.verdict = decision.not_arrived(met.arrivals, size, met.seconds)
            return
        met.addresses = [met.arrivals[rank] for rank in range(size)]
        await protocol.notify_all(met, "addresses", addresses=met.addresses)
    await protocol.connect_to_all(met)
    met.reports[0] = protocol.report(met)

    def complete() -> bool:
        return len(met.reports) == size

    await protocol.until(met, lambda: complete() or met.over, met.deadline + _REPORT_SECONDS)
    # When one worker gives up, others that started with it do so at about the same time.
    await protocol.until(met, complete, min(protocol.now(), met.deadline) + _REPORT_SECONDS)
    met.verdict = decision.decide(met.hellos, met.reports, met.addresses, met.seconds)


async def _run_other_rank(met: RendezvousState, workdir: pathlib.Path | None) -> None:
    """Every other rank's part: looks for all, reports to rank 0, and waits for its verdict."""
    if not met.addresses:
        await _arrive(met)
    if not met.over:
        await protocol.connect_to_all(met)
    if met.failed and not met.over:
        await _report_failure(met)
        return
    unseen = ""
    if workdir and not met.over and not met.unreached:
        unseen = await _miss_token(met, workdir)
    # Why rank 0 is lost, as soon as it is.
    lost = met.unreached.get(0, "")
    while not met.over and not lost:
        try:
            await protocol.call(met, 0, protocol.report(met, unseen))
            break
        except rpc.UnreachableError as error:
            lost = str(error) if protocol.now() > met.deadline else ""
            await protocol.until(met, lambda: met.over, protocol.now() + 0.2)
    await protocol.until(met, lambda: met.over or lost, max(protocol.now(), met.deadline) + _VERDICT_SECONDS)
    while not met.over and not lost:
        # Rank 0 may have started later than this worker: as long as it answers, it will decide at its own deadline.
        try:
            await protocol.call(met, 0, protocol.message(met, "who"))
        except rpc.UnreachableError as error:
            lost = str(error)
        await protocol.until(met, lambda: met.over, protocol.now() + 1.0)
    if not met.over:
        met.verdict = decision.missing(met.unreached | {0: lost}, met.addresses, met.seconds)


async def _arrive(met: RendezvousState) -> None:
    """Tells rank 0 this worker's port, where the launcher does not say who is where, and waits for all addresses."""
    reasons: dict[str, str] = {}

    def known() -> bool:
        return bool(met.addresses) or met.over

    found = False
    # As in `_follow`: a rank 0 that answers will decide, if need be after this worker's own deadline.
    while not known() and (found or protocol.now() < met.deadline):
        found = False
        for chief in met.placement.chiefs:
            dialled, _ = hostlist.split_address(chief)
            try:
                reply = await rpc.ask(chief, protocol.message(met, "arrive", port=met.placement.port, dialled=dialled))
                protocol.verify(met, reply, 0)
                found = True
                break
            except rpc.UnreachableError as error:
                reasons[chief] = str(error)
        await protocol.until(met, known, protocol.now() + (1.0 if found else 0.3))
    if not known():
        met.verdict = decision.no_chief(reasons, met.seconds)


async def _miss_token(met: RendezvousState, workdir: pathlib.Path) -> str:
    """Waits for rank 0's file in workdir; returns this worker's path of workdir if it does not appear."""
    limit = min(protocol.now() + _WORKDIR_SECONDS, met.deadline)
    while not met.over:
        # In a thread: a network file system that hangs must not hold up the calls of the other workers.
        seen = rpc.in_thread(_token(workdir, met.chief_nonce).exists)
        seen.add_done_callback(lambda _: met.changed.set())
        await protocol.until(met, lambda seen=seen: seen.done() or met.over, limit)
        if seen.done() and seen.exception() is None and seen.result():
            break
        if protocol.now() >= limit:
            return str(workdir)
        await protocol.until(met, lambda: met.over, protocol.now() + 0.2)
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


async def _leave(met: RendezvousState, failed: str) -> None:
    """Tells the others, who may be about to start, why this worker cannot take part, and raises it."""
    met.failed = failed
    if met.placement.rank == 0:
        met.verdict = decision.failure({0: failed}, met.addresses)
        await protocol.notify_all(met, "verdict", insist=True, verdict=met.verdict)
    else:
        await _report_failure(met)
    decision.members_or_raise(met.verdict)


async def _report_failure(met: RendezvousState) -> None:
    """Tells rank 0, if it can be found soon, why this worker cannot take part; that is its own verdict, too."""
    limit = min(protocol.now() + _FAREWELL_SECONDS, max(protocol.now(), met.deadline) + 1.0)
    while met.addresses and not met.over and protocol.now() < limit:
        with contextlib.suppress(rpc.UnreachableError):
            await protocol.call(met, 0, protocol.report(met))
            break
        await protocol.until(met, lambda: met.over, protocol.now() + 0.2)
    met.verdict = decision.failure({met.placement.rank: met.failed}, met.addresses)


async def _explain_port(met: RendezvousState, error: OSError) -> str:
    port = met.placement.port
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be opened: {error.strerror}"
    who = "another program listens on it"
    try:
        protocol.verify(met, await rpc.ask(f"localhost:{port}", protocol.message(met, "who"), 1.0), -1)
    except protocol.WrongPeerError as stranger:
        who = str(stranger).replace("listens there", "listens on it")
    except rpc.UnreachableError:
        pass
    return (
        f"port {port} of host {met.me['host']} is taken: {who}. If that program is not yours, choose other ports with "
        "config.cluster.port_base and port_count, or in TF_CONFIG's addresses"
    )
