"""One worker's side of the preflight: what it knows, how it calls the others, and what it answers. No TensorFlow."""

import asyncio
import contextlib
import dataclasses
import ipaddress
from collections.abc import Callable
from typing import Any

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.rendezvous import decision, rpc

_CALLS_AT_ONCE = 64
# Seconds for telling all others something, when some of them do not answer; and for one try.
_TELL_SECONDS = 5.0
_TRY_SECONDS = 1.5
# Seconds that another job, perhaps just ending, may stay at a worker's address.
_STRANGER_SECONDS = 5.0


@dataclasses.dataclass(slots=True, kw_only=True)
class RendezvousState:
    """What one worker knows so far."""

    placement: WorkerSpec
    me: dict[str, Any]
    seconds: float
    deadline: float
    addresses: list[str]
    # Tells this process from another one that claims the same rank; rank 0's also names the token file in workdir.
    nonce: str
    chief_nonce: str = ""
    # Set whenever anything below changes.
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    # rank -> why it could not be reached yet.
    unreached: dict[int, str] = dataclasses.field(default_factory=dict)
    # Why this worker cannot go on.
    failed: str = ""
    # What has asked this worker to stop, if anything has.
    stopped: str = ""
    verdict: dict[str, Any] | None = None
    # At rank 0: rank -> address, what the worker says of itself, what it reports.
    arrivals: dict[int, str] = dataclasses.field(default_factory=dict)
    hellos: dict[int, dict] = dataclasses.field(default_factory=dict)
    reports: dict[int, dict] = dataclasses.field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for: a verdict is there, or it is clear that it will be a bad one."""
        bad = any(r["failed"] or r["unreached"] or r.get("stopped") for r in self.reports.values())
        return self.verdict is not None or bool(self.stopped) or bad


def now() -> float:
    """Seconds on the event loop's clock."""
    return asyncio.get_running_loop().time()


async def until(meeting: RendezvousState, condition: Callable[[], Any], moment: float) -> bool:
    """Waits until something makes `condition` true, or until `moment`; returns whether it is true."""
    while not condition():
        meeting.changed.clear()
        try:
            await asyncio.wait_for(meeting.changed.wait(), max(0.0, moment - now()))
        except asyncio.TimeoutError:
            return bool(condition())
    return True


def message(meeting: RendezvousState, kind: str, **content: Any) -> dict[str, Any]:
    """What this worker says to another one."""
    sender = {"job": meeting.placement.job, "rank": meeting.placement.rank, "nonce": meeting.nonce}
    return sender | {"kind": kind} | content


def report(meeting: RendezvousState, workdir: str = "") -> dict[str, Any]:
    """What this worker tells rank 0 when it has looked for all others; see `verdict.decide`."""
    unreached = {str(rank): reason for rank, reason in meeting.unreached.items()}
    return message(
        meeting, "report", unreached=unreached, failed=meeting.failed, stopped=meeting.stopped, workdir=workdir
    )


class WrongPeerError(rpc.UnreachableError):
    """Another job, or another rank, answered."""


async def call(meeting: RendezvousState, rank: int, request: dict) -> dict:
    """Sends a message to a worker; raises an UnreachableError if that very worker does not reply."""
    reply = await rpc.ask(meeting.addresses[rank], request)
    verify(meeting, reply, rank)
    return reply


def verify(meeting: RendezvousState, reply: dict, rank: int) -> None:
    """Raises a StrangerError if the reply is not from this rank of this job."""
    job = meeting.placement.job
    if reply.get("job") != job:
        raise WrongPeerError(f"another job listens there ({reply.get('job')!r}; this one is {job!r})")
    if reply.get("rank") != rank:
        raise WrongPeerError(f"rank {reply.get('rank')} of this job listens there")


async def notify_all(meeting: RendezvousState, kind: str, *, insist: bool = False, **content: Any) -> list[int]:
    """Tells every other worker something, and returns the ranks that could not be told.

    A worker that has called before is tried for `_TELL_SECONDS`; another one once, or until then if `insist`, but not
    beyond the deadline.
    """
    seconds = min(_TELL_SECONDS, max(_TRY_SECONDS, meeting.deadline - now())) if insist else _TELL_SECONDS
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)
    addresses = dict(enumerate(meeting.addresses)) or meeting.arrivals
    known = meeting.hellos.keys() | meeting.arrivals.keys()
    untold = sorted((rank for rank in addresses if rank != 0), key=lambda rank: (rank not in known, rank))
    limit = now() + seconds

    async def tell(rank: int) -> None:
        while rank in untold and now() < limit:
            async with gate:
                with contextlib.suppress(rpc.UnreachableError):
                    reply = await rpc.ask(addresses[rank], message(meeting, kind, **content), _TRY_SECONDS)
                    verify(meeting, reply, rank)
                    untold.remove(rank)
            if not insist and rank not in known:
                break
            await asyncio.sleep(0.1)

    tasks = [asyncio.ensure_future(tell(rank)) for rank in untold]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
    return sorted(untold)


async def connect_to_all(meeting: RendezvousState) -> None:
    """Calls every worker, this one included, until each has answered; leaves in `unreached` those that have not."""
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)
    stop = False

    def finished() -> bool:
        return bool(stop or not meeting.unreached or meeting.failed or meeting.over or now() >= meeting.deadline)

    async def reach(rank: int) -> None:
        nonlocal stop
        pause, stranger, stranger_since = 0.1, "", 0.0
        # asyncio.wait_for may swallow a cancellation (before Python 3.12): every loop needs an end of its own.
        while rank in meeting.unreached and not finished():
            try:
                # Rank 0 alone compares what the workers say of themselves.
                hello = message(meeting, "hello", me=meeting.me if rank == 0 else None)
                async with gate:
                    reply = await call(meeting, rank, hello)
                del meeting.unreached[rank]
                if rank == 0:
                    meeting.chief_nonce = reply["nonce"]
                if rank == meeting.placement.rank and reply["nonce"] != meeting.nonce:
                    meeting.failed = decision.same_rank(rank, [meeting.me])
            except WrongPeerError as error:
                meeting.unreached[rank] = stranger = str(error)
                stranger_since = stranger_since or now()
                stop = stop or now() - stranger_since > _STRANGER_SECONDS
            except rpc.UnreachableError as error:
                meeting.unreached[rank] = str(error) + (f"; before that, {stranger}" if stranger else "")
            meeting.changed.set()
            await asyncio.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    size, own = meeting.placement.num_workers, meeting.placement.rank
    # Each begins with itself, so that not all call rank 0 first.
    order = [*range(own, size), *range(own)]
    meeting.unreached = dict.fromkeys(order, "")
    tasks = [asyncio.ensure_future(reach(rank)) for rank in order]
    await until(meeting, finished, meeting.deadline)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def handle_request(meeting: RendezvousState, request: dict, peer: str) -> dict | None:
    """Notes what another worker says, and replies who this one is: the caller may have come to the wrong place."""
    rank, kind = request.get("rank"), request.get("kind")
    if request.get("job") == meeting.placement.job and type(rank) is int and 0 <= rank < meeting.placement.num_workers:
        if kind == "arrive":
            _note_arrival(meeting, request, peer)
        elif kind == "hello" and meeting.placement.rank == 0:
            first = meeting.hellos.setdefault(rank, request)
            if first["nonce"] != request["nonce"]:
                failed = decision.same_rank(rank, [first["me"], request["me"]])
                meeting.reports[rank] = {"failed": failed, "unreached": {}, "workdir": ""}
        elif kind == "report":
            if request.get("stopped") or rank not in meeting.reports:  # A stop may come after all is well.
                meeting.reports[rank] = request
        elif kind == "addresses":
            meeting.addresses = request["addresses"]
        elif kind == "verdict":
            meeting.verdict = request["verdict"]
        meeting.changed.set()
    return {"job": meeting.placement.job, "rank": meeting.placement.rank, "nonce": meeting.nonce}


def _note_arrival(meeting: RendezvousState, request: dict, peer: str) -> None:
    """Learns a worker's address from its call, and rank 0's own from where it was called."""
    host = peer.removeprefix("::ffff:")  # How a dual-stack socket writes IPv4.
    near = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    # A caller on rank 0's own machine may come from 127.0.0.1, where the others cannot call it.
    host = request["dialled"] if near else host
    meeting.arrivals[request["rank"]] = hostlist.join_address(host, request["port"])
    if not near or 0 not in meeting.arrivals:
        meeting.arrivals[0] = hostlist.join_address(request["dialled"], meeting.placement.port)
