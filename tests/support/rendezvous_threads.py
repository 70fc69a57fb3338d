"""Workers of a rendezvous as threads of one process, with real sockets."""

import contextlib
import dataclasses
import json
import threading
import time

from tfdist.cluster.control import listener, rendezvous
from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# How much later than the deadline the last worker may end: what `rendezvous` promises, and this machine's slowness.
GRACE_SECONDS = 5.0


def tf_config(ports: list[int], rank: int) -> dict[str, str]:
    workers = [f"localhost:{port}" for port in ports]
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})}


def worker_specs(ports: list[int]) -> list[WorkerSpec]:
    return [environment.resolve(tf_config(ports, r), port_base=1024, port_count=1000) for r in range(len(ports))]


@dataclasses.dataclass
class Outcome:
    """How a worker's rendezvous ended, and after how many seconds."""

    roster: list[dict] | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def message(self) -> str:
        return str(self.error)


class Workers:
    """Workers that each run `rendezvous.rendezvous` in a thread."""

    def __init__(self):
        self.outcomes: list[Outcome] = []
        self._threads: list[threading.Thread] = []

    def start(self, spec: WorkerSpec, **keywords) -> None:
        keywords = {"must_match": {}, "seconds": 20.0} | keywords
        outcome = Outcome()
        self.outcomes.append(outcome)

        def work() -> None:
            start = time.monotonic()
            try:
                outcome.roster = rendezvous.rendezvous(spec, **keywords)
            except Exception as error:
                outcome.error = error
            outcome.seconds = time.monotonic() - start

        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def join(self) -> list[Outcome]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.outcomes


def run(workers: list[tuple[WorkerSpec, dict]]) -> list[Outcome]:
    """Runs workers side by side, each with its keyword arguments for `rendezvous.rendezvous`."""
    running = Workers()
    for spec, keywords in workers:
        running.start(spec, **keywords)
    return running.join()


def assert_all_ports_are_free(ports: list[int]) -> None:
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(listener.listen(port))
