"""The rendezvous on one worker: its state, the messages it sends, and its replies. No TensorFlow."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
from collections.abc import Callable
from typing import Any

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import reachability
from tfdist.cluster.rendezvous import decision, messages, rpc
from tfdist.cluster.wire.channel import Channel
from tfdist.cluster.wire.keys import Keys

# Requests that a worker sends at once. If they are many more, rank 0 is too slow for their time limit, and they are
# repeated until the rendezvous fails.
_MAX_REQUESTS = 4
# The time limit of a request is doubled each time that a worker does not answer, up to this, in seconds.
_MAX_REQUEST_SECONDS = 12.0
# Requests that rank 0 sends at once if it notifies all others.
_MAX_NOTIFICATIONS = 16
# Seconds that rank 0 has to notify all others if some do not answer, and more for each pair of workers: each gets the
# list of all. 1,000 workers on one machine have it after 3.2 s.
_NOTIFY_SECONDS, _SECONDS_PER_PAIR = 5.0, 1e-5
# The same for a message without which the run cannot start: a worker may be slow under a flood of connections.
_START_SECONDS = 30.0
# The time limit of a request that notifies a worker, in seconds.
_ATTEMPT_SECONDS = 1.5
# Seconds in which a client must close its connection after the reply.
_CLOSE_SECONDS = 5.0
# Seconds in which another job, perhaps just ending, may use a worker's address.
_WRONG_PEER_SECONDS = 5.0
# The longest pause between two requests to a worker, in seconds: this, or in a large job so much for each worker. The
# first pause is a fraction of it. A worker that starts sends a message, which ends the pause.
_MAX_PAUSE, _PAUSE_PER_WORKER, _FIRST_FRACTION = 1.0, 1 / 128, 0.1


@dataclasses.dataclass(slots=True, kw_only=True)
class Received:
    """What the workers have sent to this one; to rank 0: rank -> address, first message, report."""

    arrivals: dict[int, str] = dataclasses.field(default_factory=dict)
    hellos: dict[int, dict] = dataclasses.field(default_factory=dict)
    reports: dict[int, dict] = dataclasses.field(default_factory=dict)
    # True if the decision will certainly be an error.
    bad: bool = False
    # rank -> what the next message of that worker sets; see `connect`.
    awaited: dict[int, asyncio.Future] = dataclasses.field(default_factory=dict)

    def note_report(self, rank: int, report: dict[str, Any]) -> None:
        """Stores what `decision.decide` needs of a worker's report: a thousand whole ones take a MB."""
        names = ("failed", "unreached", "stopped", "workdir", "port_in_use")
        self.reports[rank] = {name: report[name] for name in names if name in report}
        self.bad = self.bad or bool(report["failed"] or report["unreached"] or report.get("stopped"))


@dataclasses.dataclass(slots=True, kw_only=True)
class RendezvousState:
    """The present state of the rendezvous on one worker."""

    spec: WorkerSpec
    keys: Keys
    me: dict[str, Any]
    seconds: float
    deadline: float
    addresses: list[str]
    # Distinguishes processes with the same rank; rank 0's is also part of the token file's name in workdir.
    nonce: str
    chief_nonce: str = ""
    # Set whenever anything below changes.
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    # rank -> reason why there is no connection yet.
    unreached: dict[int, str] = dataclasses.field(default_factory=dict)
    # rank -> time limit of the next request in seconds, if an earlier one had no answer.
    limits: dict[int, float] = dataclasses.field(default_factory=dict)
    # Reason why this worker cannot join; True if it is a port that tfdist chose: a restart has others.
    failed: str = ""
    port_in_use: bool = False
    # The stop request of this worker, such as "SIGTERM"; "" if there is none.
    stopped: str = ""
    decision: dict[str, Any] | None = None
    received: Received = dataclasses.field(default_factory=Received)

    @property
    def over(self) -> bool:
        """True if there is a decision, or if it will certainly be an error."""
        return self.decision is not None or bool(self.stopped) or self.received.bad


def size_seconds(size: int) -> float:
    """Returns the additional seconds that a decision takes to reach all of `size` workers."""
    return _SECONDS_PER_PAIR * size**2


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
    """Returns a message of this worker."""
    sender = {"job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce}
    return sender | {"kind": kind} | content


def report(state: RendezvousState, workdir: str = "") -> dict[str, Any]:
    """Returns this worker's report to rank 0; see `decision.decide`."""
    unreached = {str(rank): reason for rank, reason in state.unreached.items()}
    reasons = {"failed": state.failed, "port_in_use": state.port_in_use, "stopped": state.stopped, "workdir": workdir}
    return message(state, "report", unreached=unreached, **reasons)


async def call(state: RendezvousState, rank: int, request: dict) -> dict:
    """Sends a message to a worker; raises UnreachableError if it does not reply, or another one does."""
    limit = state.limits.get(rank, rpc.REQUEST_SECONDS)
    try:
        reply = await rpc.request(state.addresses[rank], request | {"to": rank}, state.keys, limit)
    except rpc.NoAnswerError:
        state.limits[rank] = min(2 * limit, _MAX_REQUEST_SECONDS)
        raise
    verify(state, reply, rank)
    return reply


def verify(state: RendezvousState, reply: dict, rank: int) -> None:
    """Raises rpc.WrongPeerError if the reply is not from this rank of this job."""
    job = state.spec.job
    if reply.get("job") != job:
        raise rpc.WrongPeerError(
            f"a worker of another job is listening there ({reply.get('job')!r}; this job is {job!r})"
        )
    if reply.get("rank") != rank:
        raise rpc.WrongPeerError(f"rank {reply.get('rank')} of this job is listening there")


async def notify_all(state: RendezvousState, kind: str, *, insist: bool = False, **content: Any) -> list[int]:
    """Sends a message to every other worker, and returns the ranks that did not receive it.

    A worker that has connected before is tried for `_NOTIFY_SECONDS` and more in large jobs, or for `_START_SECONDS`
    before the deadline if the message is not an error; another one once, or, if `insist`, for the same time, but not
    beyond the deadline.
    """
    seconds, left = _NOTIFY_SECONDS + size_seconds(state.spec.num_workers), state.deadline - now()
    attempt = _ATTEMPT_SECONDS
    if insist:
        seconds = min(seconds, max(_ATTEMPT_SECONDS, left))
    elif "error" not in content.get("decision", {}):
        # One attempt: a worker that reads an earlier one late has the decision, and has closed its port at the next.
        attempt = seconds = max(seconds, min(_START_SECONDS, left))
    gate = asyncio.Semaphore(_MAX_NOTIFICATIONS)
    addresses = dict(enumerate(state.addresses)) or state.received.arrivals
    known = state.received.hellos.keys() | state.received.arrivals.keys()
    pending = sorted((rank for rank in addresses if rank != 0), key=lambda rank: (rank not in known, rank))
    limit = now() + seconds
    body = json.dumps(message(state, kind, **content)).encode()  # Once: it grows with the number of workers.

    async def notify(rank: int) -> None:
        while rank in pending and now() < limit:
            async with gate:
                with contextlib.suppress(rpc.UnreachableError):
                    reply = await rpc.request(addresses[rank], messages.add_receiver(body, rank), state.keys, attempt)
                    verify(state, reply, rank)
                    pending.remove(rank)
            if not insist and rank not in known:
                break
            await asyncio.sleep(0.1)

    tasks = [asyncio.ensure_future(notify(rank)) for rank in pending]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
    return sorted(pending)


async def connect(state: RendezvousState) -> None:
    """Connects to other workers until all of them have replied; the others remain in `unreached`.

    Rank 0 sends a message to every worker. The others send one to rank 0, and one to their own address, where another
    process may have the same rank; they only connect to the partners that `reachability.partners` names. So N workers
    make about 11 N connections. A worker that was not there is called again as soon as it sends a message.
    """
    gate = asyncio.Semaphore(_MAX_REQUESTS)
    longest = max(_MAX_PAUSE, _PAUSE_PER_WORKER * state.spec.num_workers)
    stop = False

    def is_over() -> bool:
        return bool(stop or not state.unreached or state.failed or state.over or now() >= state.deadline)

    async def reach(rank: int) -> None:
        nonlocal stop
        pause, wrong_peer, wrong_peer_since = _FIRST_FRACTION * longest, "", 0.0
        # asyncio.wait_for may swallow a cancellation (before Python 3.12): every loop needs its own end condition.
        while rank in state.unreached and not is_over():
            state.received.awaited[rank] = heard = asyncio.get_running_loop().create_future()
            try:
                # Only rank 0 compares the workers' values.
                hello = message(state, "hello", me=state.me if rank == 0 else None)
                async with gate:
                    reply = await call(state, rank, hello)
                del state.unreached[rank]
                if rank == 0:
                    state.chief_nonce = reply["nonce"]
                if rank == state.spec.rank and reply["nonce"] != state.nonce:
                    state.failed = decision.same_rank(rank, [state.me])
            except rpc.WrongPeerError as error:
                state.unreached[rank] = wrong_peer = str(error)
                wrong_peer_since = wrong_peer_since or now()
                stop = stop or now() - wrong_peer_since > _WRONG_PEER_SECONDS
            except rpc.UnreachableError as error:
                state.unreached[rank] = str(error) + (f"; before that, {wrong_peer}" if wrong_peer else "")
            state.changed.set()
            if not is_over():
                await asyncio.wait([heard], timeout=pause)
            pause = min(_MAX_PAUSE if wrong_peer else longest, 2 * pause)

    size, own_rank = state.spec.num_workers, state.spec.rank
    ranks = dict.fromkeys([0, own_rank, *reachability.partners(own_rank, size)]) if own_rank else range(size)
    state.unreached = dict.fromkeys(ranks, "")
    tasks = [asyncio.ensure_future(reach(rank)) for rank in ranks]
    await until(state, is_over, state.deadline)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def handle_request(state: RendezvousState, channel: Channel, request: dict[str, Any]) -> None:
    """Stores a message of another worker, and replies with this worker's identity, which the sender verifies.

    Raises:
        ValueError: the message is malformed; the connection is closed without a reply.
    """
    messages.check(request, state.spec.num_workers)
    if request["job"] == state.spec.job and request["to"] == state.spec.rank:
        _store(state, request, channel.peer)
        if heard := state.received.awaited.pop(request["rank"], None):
            heard.set_result(None)
        state.changed.set()
    channel.send({"job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce})
    # The client closes first, so that this port does not enter TIME_WAIT.
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(channel.wait(lambda: False), _CLOSE_SECONDS)


def _store(state: RendezvousState, request: dict[str, Any], peer: str) -> None:
    rank, kind = request["rank"], request["kind"]
    if kind in messages.TO_RANK_0 and state.spec.rank == 0:
        if kind == "arrive":
            _note_arrival(state, request, peer)
        elif kind == "hello" and request["me"] is not None:
            if request["me"]["must_match"] == state.me.get("must_match"):
                request["me"]["must_match"] = state.me["must_match"]  # One copy, of a thousand workers.
            hello = {"nonce": request["nonce"], "me": request["me"]}
            first = state.received.hellos.setdefault(rank, hello)
            if first["nonce"] != request["nonce"]:
                failed = decision.same_rank(rank, [first["me"], request["me"]])
                state.received.note_report(rank, {"failed": failed, "unreached": {}, "workdir": ""})
        # A stop request may follow a good report.
        elif kind == "report" and (request["stopped"] or rank not in state.received.reports):
            state.received.note_report(rank, request)
    # Only of the rank 0 to which this worker has connected, not of an earlier start of this job.
    elif kind in messages.BY_RANK_0 and rank == 0 != state.spec.rank:
        if state.chief_nonce not in ("", request["nonce"]):
            return
        if kind == "addresses":
            state.addresses = request["addresses"]
        else:
            state.decision = request["decision"]


def _note_arrival(state: RendezvousState, request: dict, peer: str) -> None:
    """Derives a worker's address from its connection, and rank 0's from the address that was dialled."""
    host = peer.removeprefix("::ffff:")  # A dual-stack socket writes IPv4 addresses like this.
    near = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    # A worker on rank 0's host may connect from 127.0.0.1, which other hosts cannot use.
    host = request["dialled"] if near else host
    state.received.arrivals[request["rank"]] = hostlist.join_address(host, request["port"])
    if not near or 0 not in state.received.arrivals:
        state.received.arrivals[0] = hostlist.join_address(request["dialled"], state.spec.port)
