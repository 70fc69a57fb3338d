"""The exchange before TensorFlow starts: all workers meet, and rank 0 decides. Imports only the standard library.

TensorFlow waits more than ten minutes for a missing worker and ignores signals. The exchange ends at a deadline and
names the missing workers. Every agent connects to that of rank 0, and keeps the connection. When all have arrived, rank
0 asks each to connect to the addresses of a few others, which their agents hold until the decision. It compares the
values and reports of all, decides (decision.py), and sends the decision to all.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
from collections.abc import Iterable
from typing import Any

from tfdist.cluster.agent import attempts, decision, dialing, messages
from tfdist.cluster.agent import listener as listener_lib
from tfdist.cluster.agent.attempts import Attempts
from tfdist.cluster.agent.channel import Channel
from tfdist.cluster.agent.dialing import UnreachableError
from tfdist.cluster.agent.messages import Arrival, Exchange, now
from tfdist.cluster.discovery import hostlist

# What is said of a worker whose connection is closed.
_GONE = "it connected, then stopped responding"
# Workers to which rank 0 connects at once.
_AT_ONCE = 64
# The time limit of a call to rank 0 is doubled after each one without an answer, up to this, in seconds.
_LONGEST_CALL_SECONDS = 12.0
# Seconds after the deadline in which rank 0 accepts reports of workers that started at about the same time.
_REPORT_SECONDS = 0.7
# Seconds in which a worker that cannot join, or is to stop, tries to say so to rank 0 and waits for the decision.
_FAREWELL_SECONDS = 5.0
# Seconds between two signs of life of rank 0, and without one after which it is lost; of 200 workers.
_SIGN_SECONDS, _SILENT_SECONDS = 1.0, 10.0
# Seconds in which a client must close its connection after the reply.
_CLOSE_SECONDS = 5.0


def stop(state: Exchange, reason: str) -> None:
    """Notes this worker's stop request; an earlier decision of rank 0 remains valid."""
    state.own.stopped = reason
    state.links.send(messages.report(state), [0])
    state.changed.set()


async def run(state: Exchange, address: str) -> None:
    """Runs the exchange until `state.decision` is known. Then the worker's port is free again.

    Args:
        state: a new state.
        address: where this worker listens; see `listener.own_address`.
    """
    chief = state.spec.rank == 0
    state.links.receive, state.links.closed = functools.partial(store, state), functools.partial(_note_closed, state)
    with contextlib.ExitStack() as stack:
        serving: Any = contextlib.nullcontext()
        try:
            listener = stack.enter_context(listener_lib.listen(state.spec.port, address))
            serving = listener_lib.serving(listener, state.links.keys, functools.partial(_handle, state))
        except OSError as error:
            state.own.port_in_use = error.errno == errno.EADDRINUSE and state.spec.launcher != "tf_config"
            state.own.failed = await attempts.explain_port(state, error)
        if chief and state.workdir:
            try:
                stack.enter_context(attempts.token_file(state.workdir, state.nonce))
            except OSError as error:
                place = f"Received: {str(state.workdir)!r}"
                state.own.failed = state.own.failed or f"workdir cannot be written: {error.strerror}. {place}"
        async with serving:
            await (_lead(state) if chief else _follow(state))


async def _handle(state: Exchange, channel: Channel, request: dict[str, Any]) -> bool:
    """Replies to another agent with this worker's identity; returns True if the connection is kept.

    Raises:
        ValueError: the message is malformed; the connection is closed without a reply.
    """
    messages.check(request, state.spec.num_workers)
    channel.send({"job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce})
    if request["job"] == state.spec.job and request["to"] == state.spec.rank != request["rank"]:
        if request["kind"] == "arrive" and state.spec.rank == 0:
            return _arrive(state, channel, request)
        if request["kind"] == "decision" and request["rank"] == 0 and not state.chief.nonce:
            state.settle(request["decision"])
    # The client closes first, so that this port does not enter TIME_WAIT.
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(channel.reader.read(1), _CLOSE_SECONDS)
    return False


def _arrive(state: Exchange, channel: Channel, request: dict[str, Any]) -> bool:
    """Rank 0: notes a worker. Its address is derived from its connection, and rank 0's from the one that it dialled."""
    rank, known = request["rank"], state.arrivals.get(request["rank"])
    if known is not None and known.nonce != request["nonce"]:
        failed = decision.same_rank(rank, [known.me, request["me"]])
        state.reports[rank] = {"failed": failed, "unreached": {}, "stopped": "", "workdir": ""}
        state.changed.set()
        if state.decision is not None:
            channel.send(messages.of_decision(state))
        return False
    host = channel.peer.removeprefix("::ffff:")  # A dual-stack socket writes IPv4 addresses like this.
    near = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    # A worker on rank 0's host may connect from 127.0.0.1, which other hosts cannot use.
    address = hostlist.join_address(request["dialled"] if near else host, request["port"])
    state.arrivals[rank] = Arrival(me=request["me"], nonce=request["nonce"], address=address)
    if not near or not state.arrivals[0].address:
        state.arrivals[0].address = hostlist.join_address(request["dialled"], state.spec.port)
    if state.unreached.get(rank) == _GONE:
        del state.unreached[rank]
    state.links.keep(rank, channel)
    if state.decision is not None:
        state.links.send(messages.of_decision(state), [rank])
    elif state.chief.asked is not None:
        _ask(state, [rank])
    state.changed.set()
    return True


def store(state: Exchange, rank: int, received: dict[str, Any]) -> None:
    """Stores a message of the worker at the other end of a kept connection; raises ValueError if it is malformed."""
    messages.check(received, state.spec.num_workers)
    if received["rank"] != rank or received["job"] != state.spec.job:
        raise ValueError("a message of another worker")
    kind = received["kind"]
    if state.spec.rank == 0:
        # A stop request may follow a good report.
        if kind == "report" and (received["stopped"] or rank not in state.reports):
            state.reports[rank] = received
    elif rank == 0 and received["nonce"] == state.chief.nonce:  # Not of an earlier start of this job.
        state.chief.heard = now()
        if kind == "try":
            state.chief.asked = received
        elif kind == "decision":
            state.settle(received["decision"] | {"agent_port": received["agent_port"]})
    state.changed.set()


def _note_closed(state: Exchange, rank: int) -> None:
    """Rank 0: a worker that has gone is missing, unless it has said why."""
    if not any(state.reports.get(rank, {}).get(name) for name in ("failed", "stopped")):
        state.arrivals.pop(rank, None)
        state.reports.pop(rank, None)
        state.unreached.setdefault(rank, _GONE)
    state.changed.set()


async def _lead(state: Exchange) -> None:
    """Rank 0: waits for all workers and their reports, and decides."""
    size = state.spec.num_workers
    state.arrivals[0] = Arrival(me=state.me, nonce=state.nonce, address="")
    showing, trying = asyncio.ensure_future(_show_life(state)), None

    def complete() -> bool:
        return len(state.arrivals) == len(state.reports) == size

    if state.addresses:
        trying = asyncio.ensure_future(_try_all(state))
    await state.until(lambda: len(state.arrivals) == size or state.over, state.deadline)
    if len(state.arrivals) == size and not state.over:
        state.addresses = state.addresses or [state.arrivals[rank].address for rank in range(size)]
        state.chief.asked = {}
        _ask(state, range(1, size))
        await (trying or _try_all(state))
        state.reports[0] = messages.report(state)
        await state.until(lambda: complete() or state.over, state.deadline + _REPORT_SECONDS)
    state.reports[0] = messages.report(state)
    # If one worker gives up, others that started with it do so at about the same time.
    await state.until(complete, min(now(), state.deadline) + _REPORT_SECONDS)
    state.reports[0] = messages.report(state)
    showing.cancel()
    if state.addresses or any(one["failed"] or one["stopped"] for one in state.reports.values()):
        hellos = {rank: {"me": arrival.me} for rank, arrival in state.arrivals.items()}
        state.settle(decision.decide(hellos, state.reports, state.addresses, state.seconds))
    else:
        state.settle(decision.not_arrived(state.arrivals, size, state.seconds))
    if "error" in state.decision:
        await _tell(state)


async def _tell(state: Exchange) -> None:
    """Rank 0: sends an error to all, also to those that start a little later."""
    state.links.send(messages.of_decision(state))
    limit = now() + min(_FAREWELL_SECONDS, max(0.0, state.deadline - now()))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def dial(rank: int) -> None:
        while rank not in state.links.channels and now() < limit:
            with contextlib.suppress(UnreachableError):
                async with gate:
                    message = messages.of_decision(state, rank)
                    return attempts.verify(
                        state, await dialing.request(state.addresses[rank], state.links.keys, message), rank
                    )
            await asyncio.sleep(0.1)

    if state.own.failed and state.addresses:  # Perhaps nobody can connect to this worker.
        await asyncio.gather(*(dial(rank) for rank in range(1, state.spec.num_workers)))
    else:
        await state.until(lambda: len(state.arrivals) == state.spec.num_workers, limit)


def _ask(state: Exchange, ranks: Iterable[int]) -> None:
    """Rank 0: asks workers to try the addresses of others."""
    size, left = state.spec.num_workers, max(0.0, state.deadline - now())
    for rank in ranks:
        tried = {str(other): state.addresses[other] for other in (rank, *dialing.partners(rank, size)) if other}
        state.links.send(messages.make(state, "try", rank, addresses=tried, seconds=left), [rank])


async def _try_all(state: Exchange) -> None:
    await attempts.try_addresses(state, dict(enumerate(state.addresses)), state.deadline, _AT_ONCE)


async def _show_life(state: Exchange) -> None:
    while True:
        await asyncio.sleep(_SIGN_SECONDS * max(1.0, state.spec.num_workers / 200))
        state.links.send(messages.make(state, "who"))


async def _follow(state: Exchange) -> None:
    """Other ranks: connect to rank 0, do what it asks for, and wait for its decision."""
    rank, size = state.spec.rank, state.spec.num_workers
    linking = asyncio.ensure_future(_stay_linked(state))

    def ready() -> bool:
        return state.chief.asked is not None or state.over

    await state.until(ready, state.deadline - dialing.SECONDS)
    if not ready() and not state.links.channels and state.addresses:
        others = {other: state.addresses[other] for other in dialing.partners(rank, size) if other}
        await attempts.try_addresses(state, others, state.deadline)
    await state.until(ready, float("inf"))
    if not state.over:
        addresses = {int(other): address for other, address in state.chief.asked["addresses"].items()}
        limit = now() + state.chief.asked["seconds"]
        state.addresses = state.addresses or [addresses.get(one, "") for one in range(size)]
        trying = attempts.try_addresses(state, addresses, limit)
        _, unseen = await asyncio.gather(trying, attempts.wait_for_token(state, limit))
        state.links.send(messages.report(state, unseen), [0])
        await state.until(lambda: state.over, float("inf"))
    if state.decision is None:  # This worker cannot join, or is to stop: rank 0 says it to all.
        state.links.send(messages.report(state), [0])
        await state.until(lambda: state.decision is not None, now() + _FAREWELL_SECONDS)
    linking.cancel()
    if state.own.stopped:
        state.settle(decision.stopped({rank: state.own.stopped}, state.addresses))
    state.settle(decision.failure({rank: state.own.failed}, state.addresses, port_in_use=state.own.port_in_use))


async def _stay_linked(state: Exchange) -> None:
    """Connects to rank 0 again and again until there is a decision; rank 0 decides, also after this deadline."""
    places, limit, pause = state.spec.addresses[:1] or state.spec.chiefs, dialing.SECONDS, 0.1
    found = {place: Attempts() for place in places}
    while True:
        for place in places:
            dialled, _ = hostlist.split_address(place)
            arrival = messages.make(state, "arrive", 0, me=state.me, port=state.spec.port, dialled=dialled)
            seconds = min(limit, max(0.5, state.deadline - now()))
            try:
                channel, reply = await dialing.call(place, state.links.keys, arrival, seconds)
                with contextlib.closing(channel.writer):
                    attempts.verify(state, reply, 0)
                    await _hold(state, channel, reply["nonce"])
                found[place] = Attempts(_GONE)
                break
            except UnreachableError as error:
                no_answer = isinstance(error, dialing.NoAnswerError)
                limit = min(2 * limit, _LONGEST_CALL_SECONDS) if no_answer else limit
                if not no_answer or not found[place].why:
                    found[place].note(error)
        if now() >= state.deadline or (len(places) == 1 and found[place].in_vain):
            break
        await asyncio.sleep(pause)
        pause = min(1.0, 1.5 * pause)
    if state.spec.addresses:
        absent = state.unreached | {0: found[places[0]].why}
        state.settle(decision.missing(absent, state.addresses, state.seconds))
    else:
        state.settle(decision.no_chief({place: one.why for place, one in found.items()}, state.seconds))


async def _hold(state: Exchange, channel: Channel, nonce: str) -> None:
    """Keeps the connection to rank 0 until it is closed or silent."""
    state.chief.nonce, state.chief.heard = nonce, now()
    state.links.keep(0, channel)
    if state.own.failed or state.own.stopped:
        state.links.send(messages.report(state), [0])
    limit = _SILENT_SECONDS * max(1.0, state.spec.num_workers / 200)
    while not await state.until(lambda: 0 not in state.links.channels, state.chief.heard + limit):
        if now() >= state.chief.heard + limit:
            break
