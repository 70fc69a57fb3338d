"""The rendezvous of many or slow workers: requests at once, their time limits, and look-ups of names."""

import asyncio
import contextlib
import dataclasses
import gc
import json
import socket
import threading
import time

import pytest
from launching import free_ports
from rendezvous_threads import Workers, run, tf_config, worker_specs

from tfdist.cluster.discovery import environment
from tfdist.cluster.rendezvous import protocol, rpc
from tfdist.cluster.wire import keys


@contextlib.contextmanager
def serving_at(ports: list[int], handle):
    """Serves `handle(reader, writer)` at `ports` in a thread."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        for port in ports:
            await asyncio.start_server(handle, "localhost", port)
        ready.set()

    def work() -> None:
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def test_a_late_worker_is_contacted_at_once_however_long_the_pauses_are(monkeypatch):
    monkeypatch.setattr(protocol, "_PAUSE_PER_WORKER", 20.0)  # The pauses of 7,680 workers: from 6 s to 60 s.
    workers, specs = Workers(), worker_specs(free_ports(3))
    for rank in (0, 2):
        workers.start(specs[rank], seconds=40.0)
    time.sleep(1.0)
    workers.start(specs[1], seconds=40.0)
    outcomes = workers.join()
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert max(outcome.seconds for outcome in outcomes) < 5.0


def test_a_swallowed_cancellation_is_followed_by_no_pause(monkeypatch):
    async def call(state, rank, request):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:  # As `asyncio.wait_for` before Python 3.12, if the reply comes at that moment.
            raise rpc.UnreachableError("no answer") from None

    async def connect() -> float:
        spec, started = worker_specs(free_ports(3))[0], protocol.now()
        state = protocol.RendezvousState(
            spec=spec,
            keys=keys.Keys((b"k" * 64,)),
            me={},
            seconds=0.2,
            deadline=started + 0.2,
            addresses=list(spec.addresses),
            nonce="0" * 16,
        )
        await protocol.connect(state)
        return protocol.now() - started

    monkeypatch.setattr(protocol, "_PAUSE_PER_WORKER", 20.0)  # The first pause of 7,680 workers is 6 s.
    monkeypatch.setattr(protocol, "call", call)
    assert asyncio.run(connect()) < 3.0


def test_a_worker_that_reports_after_the_decision_receives_it(monkeypatch):
    notify_all = protocol.notify_all

    async def notify_late(*args, **keywords):
        await asyncio.sleep(1.0)  # As if there were many others: rank 0 has closed its port.
        return await notify_all(*args, **keywords)

    monkeypatch.setattr(protocol, "notify_all", notify_late)
    workers, specs = Workers(), worker_specs(free_ports(3))
    for rank in (0, 1):
        workers.start(specs[rank], seconds=2.0)
        time.sleep(1.0)
    chief, other = (outcome.message for outcome in workers.join())
    assert chief == other and "rank 2 " in chief and "rank 0 " not in chief


def test_a_request_that_fails_while_it_is_cancelled_prints_nothing(monkeypatch):
    reported: list[dict] = []

    async def refused(*args, **keywords):
        for _ in range(3):
            await asyncio.sleep(0)
        raise ConnectionRefusedError

    async def cancel_after(iterations: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        task = asyncio.ensure_future(rpc.request("127.0.0.1:1", {}, keys.Keys((b"k" * 64,))))
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, rpc.UnreachableError):
            await task

    monkeypatch.setattr(rpc.channel, "request", refused)
    monkeypatch.setitem(rpc._looked_up, "127.0.0.1", (time.monotonic(), ["127.0.0.1"]))
    for iterations in range(20):
        asyncio.run(cancel_after(iterations))
        gc.collect()
    assert reported == []


@pytest.mark.slow
def test_a_worker_sends_few_requests_at_once_and_gives_slow_workers_more_time():
    ports = free_ports(17)
    lasted: list[float] = []
    open_now = [0]
    most_open = [0]

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = time.monotonic()
        open_now[0] += 1
        most_open[0] = max(most_open[0], open_now[0])
        await reader.read()  # Until the worker gives up.
        open_now[0] -= 1
        lasted.append(time.monotonic() - start)
        writer.close()

    with serving_at(ports[:-1], silent):
        (outcome,) = run([(worker_specs(ports)[-1], {"seconds": 4.0})])
    assert isinstance(outcome.error, TimeoutError)
    assert 1 <= most_open[0] <= 4

    lasted.clear()
    ports = free_ports(2)
    with serving_at(ports[:1], silent):
        run([(worker_specs(ports)[1], {"seconds": 10.0})])
    assert 2.5 < lasted[0] < 4.5 and 5.5 < lasted[1] < 8.0


def test_each_host_is_looked_up_once(monkeypatch):
    looked_up = []

    def counted(host, *args, _real=socket.getaddrinfo, **keywords):
        looked_up.append(host)
        return _real(host, *args, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    name = socket.gethostname()
    ports = free_ports(8)
    config = {"cluster": {"worker": [f"{name}:{port}" for port in ports]}, "task": {"type": "worker", "index": 3}}
    spec = environment.resolve({"TF_CONFIG": json.dumps(config)}, port_base=1024, port_count=1000)
    (outcome,) = run([(spec, {"seconds": 3.0})])
    assert "7 of 8 workers did not connect" in outcome.message
    # To find the own address; and for the first requests, which are sent at once.
    assert 1 < looked_up.count(name) <= 5


def test_a_worker_that_is_slow_when_the_decision_arrives_is_waited_for():
    """As in a flood of connections: the message reaches it 4 s late."""
    ports = free_ports(3)
    delayed = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if b'"kind": "decision"' in data:
                    delayed.append(data)
                    await asyncio.sleep(4.0)
                sink.write(data)
            sink.close()

        with contextlib.suppress(OSError):  # Until the worker listens, and after it.
            worker_reader, worker_writer = await asyncio.open_connection("localhost", ports[2])
            await asyncio.gather(copy(reader, worker_writer), copy(worker_reader, writer))
        writer.close()

    specs = [environment.resolve(tf_config(ports[:2], rank), port_base=1024, port_count=1000) for rank in range(2)]
    specs[1] = dataclasses.replace(specs[1], port=ports[2])
    with serving_at(ports[1:2], forward):
        outcomes = run([(spec, {"seconds": 60.0}) for spec in specs])
    assert delayed
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert all(len(outcome.roster) == 2 for outcome in outcomes)


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(monkeypatch):
    monkeypatch.setitem(rpc._looked_up, "two", (time.monotonic(), ["10.0.0.1", "10.0.0.2"]))

    async def exchange(sockaddr):
        await asyncio.sleep(60 if sockaddr[0] == "10.0.0.1" else 0)
        return sockaddr

    assert asyncio.run(rpc._exchange("two:7", exchange, 0.4)) == ("10.0.0.2", 7)
