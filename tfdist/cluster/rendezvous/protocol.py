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

    spec: WorkerSpec
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


async def until(state: RendezvousState, condition: Callable[[], Any], moment: float) -> bool:
    """Waits until something makes `condition` true, or until `moment`; returns whether it is true."""
    while not condition():
        state.changed.clear()
        try:
            await asyncio.wait_for(state.changed.wait(), max(0.0, moment - now()))
        except asyncio.TimeoutError:
            return bool(condition())
    return True


def message(state: RendezvousState, kind: str, **content: Any) -> dict[str, Any]:
    """What this worker says to another one."""
    sender = {"job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce}
    return sender | {"kind": kind} | content


def report(state: RendezvousState, workdir: str = "") -> dict[str, Any]:
    """What this worker tells rank 0 when it has looked for all others; see `verdict.decide`."""
    unreached = {str(rank): reason for rank, reason in state.unreached.items()}
    return message(state, "report", unreached=unreached, failed=state.failed, stopped=state.stopped, workdir=workdir)


class WrongPeerError(rpc.UnreachableError):
    """Another job, or another rank, answered."""


async def call(state: RendezvousState, rank: int, request: dict) -> dict:
    """Sends a message to a worker; raises an UnreachableError if that very worker does not reply."""
    reply = await rpc.ask(state.addresses[rank], request)
    verify(state, reply, rank)
    return reply


def verify(state: RendezvousState, reply: dict, rank: int) -> None:
    """Raises a StrangerError if the reply is not from this rank of this job."""
    job = state.spec.job
    if reply.get("job") != job:
        raise WrongPeerError(f"a worker of another job is listening there ({reply.get('job')!r}; this job is {job!r})")
    if reply.get("rank") != rank:
        raise WrongPeerError(f"rank {reply.get('rank')} of this job is listening there")


async def notify_all(state: RendezvousState, kind: str, *, insist: bool = False, **content: Any) -> list[int]:
    """Tells every other worker something, and returns the ranks that could not be told.

    A worker that has called before is tried for `_TELL_SECONDS`; another one once, or until then if `insist`, but not
    beyond the deadline.
    """
    seconds = min(_TELL_SECONDS, max(_TRY_SECONDS, state.deadline - now())) if insist else _TELL_SECONDS
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)
    addresses = dict(enumerate(state.addresses)) or state.arrivals
    known = state.hellos.keys() | state.arrivals.keys()
    untold = sorted((rank for rank in addresses if rank != 0), key=lambda rank: (rank not in known, rank))
    limit = now() + seconds

    async def tell(rank: int) -> None:
        while rank in untold and now() < limit:
            async with gate:
                with contextlib.suppress(rpc.UnreachableError):
                    reply = await rpc.ask(addresses[rank], message(state, kind, **content), _TRY_SECONDS)
                    verify(state, reply, rank)
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


async def connect_to_all(state: RendezvousState) -> None:
    """Calls every worker, this one included, until each has answered; leaves in `unreached` those that have not."""
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)
    stop = False

    def finished() -> bool:
        return bool(stop or not state.unreached or state.failed or state.over or now() >= state.deadline)

    async def reach(rank: int) -> None:
        nonlocal stop
        pause, stranger, stranger_since = 0.1, "", 0.0
        # asyncio.wait_for may swallow a cancellation (before Python 3.12): every loop needs an end of its own.
        while rank in state.unreached and not finished():
            try:
                # Rank 0 alone compares what the workers say of themselves.
                hello = message(state, "hello", me=state.me if rank == 0 else None)
                async with gate:
                    reply = await call(state, rank, hello)
                del state.unreached[rank]
                if rank == 0:
                    state.chief_nonce = reply["nonce"]
                if rank == state.spec.rank and reply["nonce"] != state.nonce:
                    state.failed = decision.same_rank(rank, [state.me])
            except WrongPeerError as error:
                state.unreached[rank] = stranger = str(error)
                stranger_since = stranger_since or now()
                stop = stop or now() - stranger_since > _STRANGER_SECONDS
            except rpc.UnreachableError as error:
                state.unreached[rank] = str(error) + (f"; before that, {stranger}" if stranger else "")
            state.changed.set()
            await asyncio.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    size, own = state.spec.num_workers, state.spec.rank
    # Each begins with itself, so that not all call rank 0 first.
    order = [*range(own, size), *range(own)]
    state.unreached = dict.fromkeys(order, "")
    tasks = [asyncio.ensure_future(reach(rank)) for rank in order]
    await until(state, finished, state.deadline)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def handle_request(state: RendezvousState, request: dict, peer: str) -> dict | None:
    """Notes what another worker says, and replies who this one is: the caller may have come to the wrong place."""
    rank, kind = request.get("rank"), request.get("kind")
    if request.get("job") == state.spec.job and type(rank) is int and 0 <= rank < state.spec.num_workers:
        if kind == "arrive":
            _note_arrival(state, request, peer)
        elif kind == "hello" and state.spec.rank == 0:
            first = state.hellos.setdefault(rank, request)
            if first["nonce"] != request["nonce"]:
                failed = decision.same_rank(rank, [first["me"], request["me"]])
                state.reports[rank] = {"failed": failed, "unreached": {}, "workdir": ""}
        elif kind == "report":
            if request.get("stopped") or rank not in state.reports:  # A stop may come after all is well.
                state.reports[rank] = request
        elif kind == "addresses":
            state.addresses = request["addresses"]
        elif kind == "verdict":
            state.verdict = request["verdict"]
        state.changed.set()
    return {"job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce}


def _note_arrival(state: RendezvousState, request: dict, peer: str) -> None:
    """Learns a worker's address from its call, and rank 0's own from where it was called."""
    host = peer.removeprefix("::ffff:")  # How a dual-stack socket writes IPv4.
    near = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    # A caller on rank 0's own machine may come from 127.0.0.1, where the others cannot call it.
    host = request["dialled"] if near else host
    state.arrivals[request["rank"]] = hostlist.join_address(host, request["port"])
    if not near or 0 not in state.arrivals:
        state.arrivals[0] = hostlist.join_address(request["dialled"], state.spec.port)
