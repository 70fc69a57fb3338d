"""The watchdog of TensorFlow's start, for as many workers as a large job has."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import socketserver
import threading
import time

import processes
import psutil

from tfdist.cluster.liveness import startup_watchdog


def test_the_names_of_thousands_of_workers_fit():
    """On the command line of the watchdog, 128 KiB would be the limit: the start failed with E2BIG."""
    members = [
        {"rank": rank, "address": f"localhost:{1 + rank % 9}", "host": f"n{rank:05d}.cluster.example.org", "pid": rank}
        for rank in range(3000)
    ]
    started = time.monotonic()
    with startup_watchdog.deadline(0, members, 600.0):
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


def test_a_worker_of_a_large_job_checks_only_some_of_the_others_each_second():
    """All of 300, one after another each second, would be 300 connections a second in each of 300 workers."""
    with Server(("127.0.0.1", 0), Greeter) as server:
        server.seen, port = [], server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        members = [{"rank": r, "address": f"127.0.0.1:{port}", "host": "n9", "pid": r} for r in range(300)]
        with startup_watchdog.deadline(0, members, 600.0):
            time.sleep(3.5)
        server.shutdown()
    assert 64 <= len(server.seen) <= 4 * 64


def test_a_worker_continues_when_its_watchdog_is_killed_in_the_start():
    """The out-of-memory killer may choose it; the worker ended with "Broken pipe", and the launcher did not restart."""
    members = [{"rank": rank, "address": f"127.0.0.1:{1 + rank}", "host": "n9", "pid": rank} for rank in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = {child.pid for child in psutil.Process().children()}
        with startup_watchdog.deadline(0, members, 600.0, listener):
            (watchdog,) = {child.pid for child in psutil.Process().children()} - before
            os.kill(watchdog, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(watchdog)], timeout=0.5)


def test_signals_that_reach_all_processes_of_a_step_leave_the_watchdog():
    """It replies for a worker that saves after the signal; Ctrl-C by scancel ended it with a stack."""
    members = [{"rank": rank, "address": f"127.0.0.1:{1 + rank}", "host": "n9", "pid": rank} for rank in range(2)]
    before = {child.pid for child in psutil.Process().children()}
    with startup_watchdog.deadline(0, members, 600.0):
        (watchdog,) = {child.pid for child in psutil.Process().children()} - before
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

        def ignores_all():
            (mask,) = re.findall(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{watchdog}/status").read_text())
            return all(int(mask, 16) >> (number - 1) & 1 for number in numbers)

        processes.until(ignores_all, 30)
        for number in numbers:
            os.kill(watchdog, number)
        time.sleep(0.5)
        assert psutil.Process(watchdog).status() != psutil.STATUS_ZOMBIE
