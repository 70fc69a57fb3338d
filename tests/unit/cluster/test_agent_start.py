"""The agent during TensorFlow's start, for as many workers as a large job has."""

import contextlib
import os
import signal
import socketserver
import threading
import time

from launching import free_ports
from rendezvous_threads import worker_specs

from tfdist.cluster.agent import client
from tfdist.cluster.agent.client import Agent
from tfdist.cluster.agent.keys import Keys
from tfdist.cluster.discovery.worker_spec import WorkerSpec


@contextlib.contextmanager
def late_agent(members: list[dict], rank: int, port: int):
    """The agent process of a worker that continues a start: these workers have met."""
    spec = WorkerSpec(
        launcher="tf_config", rank=rank, num_workers=len(members), addresses=("127.0.0.1:1",) * len(members)
    )
    agent: Agent = client._launch(spec, Keys((b"k" * 64,)), in_thread=False)
    agent.send(**client._first(spec, agent.keys), members=members, agent_port=port)
    try:
        assert agent.receive(30.0)["decision"]["members"] == members
        yield agent
    finally:
        agent.close()


def test_the_names_of_thousands_of_workers_fit():
    """On a command line, 128 KiB would be the limit: the start failed with E2BIG."""
    members = [
        {"rank": rank, "address": f"localhost:{1 + rank % 9}", "host": f"n{rank:05d}.cluster.example.org", "pid": rank}
        for rank in range(3000)
    ]
    started = time.monotonic()
    with late_agent(members, 7, 1) as agent, agent.start_limit(600.0, 10.0):
        pass
    assert time.monotonic() - started < 60.0


class Greeter(socketserver.BaseRequestHandler):
    """Counts connections, and greets as the server of gRPC does."""

    def handle(self):
        self.server.seen.append(self.client_address)
        with contextlib.suppress(OSError):
            self.request.sendall(b"hello")


class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 512


def test_a_worker_of_a_large_job_connects_to_few_others_each_second():
    """All of 300, one after another each second, would be 300 connections a second in each of 300 workers."""
    with Server(("127.0.0.1", 0), Greeter) as server:
        server.seen, port = [], server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        members = [{"rank": r, "address": f"127.0.0.1:{port}", "host": "n9", "pid": r} for r in range(300)]
        with late_agent(members, 5, port) as agent, agent.start_limit(600.0, 10.0):
            time.sleep(3.5)
        server.shutdown()
    assert 2 <= len(server.seen) <= 64


def test_a_worker_whose_agent_is_killed_during_the_start_goes_on():
    """The out-of-memory killer may choose it; the worker ended with "Broken pipe", and the launcher did not restart."""
    specs, agents = worker_specs(free_ports(2)), []

    def work(spec: WorkerSpec) -> None:
        agents.append(client.meet(spec, must_match={}, seconds=30.0)[1])

    threads = [threading.Thread(target=work, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = agents
    with first.start_limit(600.0, 10.0), second.start_limit(600.0, 10.0):
        os.kill(first.process.pid, signal.SIGKILL)
        assert first.process.wait(10) == -signal.SIGKILL
    for agent in agents:
        agent.close()
