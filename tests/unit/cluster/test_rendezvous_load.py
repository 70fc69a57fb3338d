"""The rendezvous of many or slow workers: slow messages and addresses."""

import asyncio
import contextlib
import dataclasses
import threading

from launching import free_ports
from rendezvous_threads import run, tf_config

from tfdist.cluster.discovery import environment


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


def test_a_worker_that_is_slow_when_the_decision_arrives_is_waited_for():
    """As in a flood of connections: the message reaches it 4 s late."""
    ports = free_ports(3)
    delayed = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if b'"members": ' in data:
                    delayed.append(data)
                    await asyncio.sleep(4.0)
                sink.write(data)
            sink.close()

        with contextlib.suppress(OSError):  # Until rank 0 listens, and after it.
            chief_reader, chief_writer = await asyncio.open_connection("localhost", ports[2])
            await asyncio.gather(copy(reader, chief_writer), copy(chief_reader, writer))
        writer.close()

    specs = [environment.resolve(tf_config(ports[:2], rank), port_base=1024, port_count=1000) for rank in range(2)]
    specs[0] = dataclasses.replace(specs[0], port=ports[2])
    with serving_at(ports[:1], forward):
        outcomes = run([(spec, {"seconds": 60.0}) for spec in specs])
    assert delayed
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert all(len(outcome.roster) == 2 for outcome in outcomes)
