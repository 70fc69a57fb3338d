"""Workers that die, hang or vanish: named by the others, which all end. On real processes and a real network."""

import contextlib
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time

import forked
import processes
import psutil
import pytest
import topologies
from launching import REPOSITORY, worker_environment
from networks import address, namespaces_missing, set_cable, two_hosts

from tfdist.cluster import interruption

LOST, KILL, STOP = interruption.EXIT_PEER_LOST, signal.SIGKILL, signal.SIGSTOP
# How many seconds of silence a survivor may name at the most.
SEEN_WITHIN = 15.0
# A worker whose main thread does what its argument says, without TensorFlow: it hangs where another one is lost.
WORKER = """
import ctypes, os, sys, threading, time
from tfdist import config
from tfdist.cluster.discovery import environment
from tfdist.cluster.agent import client, peer_loss
rank = (found := environment.resolve(os.environ, port_base=10000, port_count=10000)).rank
what, seconds = sys.argv[1], float(sys.argv[2])
members, agent = client.meet(found, must_match={}, seconds=60)
with agent.start_limit(60.0, seconds):
    pass
options = config.ClusterOptions(heartbeat_seconds=seconds, stall_seconds=3.0 if what in ("stall", "behind") else None)
watching = peer_loss.start(rank=rank, members=members, options=options, agent=agent)
watching.heartbeat(step := 1)
print("ready", flush=True)
until = time.monotonic() + {"run": 600.0, "stall": 0.0}.get(what, 1.0)
while time.monotonic() < until:
    watching.heartbeat(step := step + 1)
    time.sleep(0.05)
if what == "wait":
    time.sleep(600)
if what == "collect":
    with watching.in_collective("an exchange of values"):
        time.sleep(600)
if what == "callback":  # Or a last save.
    with watching.paused():
        time.sleep(8)
if what == "behind":  # In the next execution, which begins when the callback has ended.
    time.sleep(4.5)
if what == "busy":
    ctypes.PyDLL(None).sleep(5)  # As json.loads of a large file does: without letting any thread of Python run.
if what == "write":
    threading.Thread(target=lambda: (time.sleep(4.5), print("written", flush=True))).start()
def nowhere():
    time.sleep(600)
if what in ("stall", "write"):
    nowhere()
if what == "fail":
    peer_loss.claim_exit()
    peer_loss.announce_failure("the disk is full.")
    os._exit(1)
watching.finish(3.0 if what == "behind" else 60.0)
"""


class Workers:
    """Worker processes that run."""

    def __init__(self, processes):
        self.processes = processes

    def hit(self, rank, number):
        self.processes[rank].send_signal(number)

    def ends(self, ranks):
        """Waits for the end of these, which a busy machine may delay; returns their exit codes and errors."""
        said = [self.processes[rank].communicate(timeout=120)[1] for rank in ranks]
        return [self.processes[rank].returncode for rank in ranks], said


@contextlib.contextmanager
def started(commands, environments, popen=forked.Popen):
    """Starts workers, whose errors go to a pipe of their own; none is left behind."""
    with processes.started(commands, environments, popen=popen, text=True, stderr=subprocess.PIPE) as found:
        yield Workers(found)


@contextlib.contextmanager
def plain(*tasks, seconds=2.0, hosts=None):
    """Starts workers without TensorFlow that do these tasks, on this host or as `on_two_hosts` says."""
    commands = [[sys.executable, "-c", WORKER, task, str(seconds)] for task in tasks]
    environments = topologies.environments(len(tasks))
    if hosts:
        commands, environments = on_two_hosts(hosts, commands)
    with started(commands, environments, subprocess.Popen) as workers:
        for process in workers.processes:
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(1.6)  # The second beat names a step.
        yield workers


def on_two_hosts(hosts, commands):
    """Returns the commands and environments of three workers: two on n9, the chief among them, and one on n10."""
    addresses = [f"{address(rank == 2)}:{port}" for rank, port in enumerate(topologies.free_ports(3))]
    cluster = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}} for rank in range(3)]
    environments = [worker_environment(TF_CONFIG=json.dumps(one)) for one in cluster]
    return [[*hosts[rank == 2], *command] for rank, command in enumerate(commands)], environments


def assert_lost_on_both_sides(codes, said, workers, seconds):
    """Asserts that n9's workers name n10's, and n10's the chief, after `seconds` without a heartbeat."""
    assert codes == [LOST] * 3, said
    silent = (seconds, SEEN_WITHIN)
    assert_named({0: said[0], 1: said[1]}, 2, workers.processes[2], host="n10", silent=silent)
    assert_named({2: said[2]}, 0, workers.processes[0], host="n9", silent=silent)


def assert_named(said, lost, process, *, host=None, silent, step=r"\d+"):
    """Asserts that each survivor wrote one line that names the worker, and for how many seconds it was silent."""
    who = rf"worker {lost} \(host {re.escape(host or os.uname().nodename)}, pid {process.pid}\)"
    for rank, text in said.items():
        lost_line = rf"{who} is lost: last heartbeat (\d+\.\d) s ago, then at step {step}\. Restart all .*\n"
        line = rf"tfdist: worker {rank}: {lost_line}"
        match = re.fullmatch(line, text)
        assert match, text
        assert silent[0] <= float(match[1]) <= silent[1], text


@pytest.mark.parametrize(("number", "victim"), [(KILL, 2), (KILL, 0), (STOP, 2), (STOP, 0)])
def test_a_worker_that_is_killed_or_stopped_is_named_by_all_others(number, victim):
    others = [rank for rank in range(3) if rank != victim]
    with plain("run", "run", "run") as workers:
        workers.hit(victim, number)
        codes, said = workers.ends(others)
        assert codes == [LOST, LOST], said
        silent = (0.0 if number == KILL else 2.0, SEEN_WITHIN)
        assert_named(dict(zip(others, said, strict=True)), victim, workers.processes[victim], silent=silent)


@pytest.mark.parametrize("tasks", [("leave", "busy"), ("busy", "leave")])
def test_a_worker_that_is_busy_without_letting_threads_run_is_not_lost(tasks):
    """Silent for twice the limit; a call of 25 s ended a run of the default limit of 10 s."""
    with plain(*tasks) as workers:
        codes, said = workers.ends([0, 1])
    assert codes == [0, 0] and said == ["", ""]


def test_a_worker_that_is_stopped_while_it_is_busy_is_named():
    with plain("run", "busy") as workers:
        time.sleep(3.0)
        assert workers.processes[0].poll() is None
        workers.hit(1, STOP)
        codes, said = workers.ends([0])
    assert codes == [LOST]
    assert_named({0: said[0]}, 1, workers.processes[1], silent=(3.0, SEEN_WITHIN))


@pytest.mark.skipif(namespaces_missing() is not None, reason=namespaces_missing() or "")
def test_workers_on_both_sides_of_a_pulled_cable_name_each_other():
    with two_hosts() as hosts, plain("run", "run", "run", hosts=hosts) as workers:
        set_cable(hosts[1], "down")
        codes, said = workers.ends([0, 1, 2])
        assert_lost_on_both_sides(codes, said, workers, 2.0)


def test_all_that_are_stopped_together_go_on():
    with plain("run", "run") as workers:
        for number in (STOP, signal.SIGCONT):
            for process in workers.processes:
                process.send_signal(number)
            time.sleep(3.5)
        assert [process.poll() for process in workers.processes] == [None, None]


def test_a_worker_whose_calls_never_end_says_so_with_all_stacks():
    with plain("stall", "run") as workers:
        codes, said = workers.ends([0, 1])
    assert codes == [LOST, LOST]
    for rank, text in enumerate(said):
        line = (
            rf"tfdist: worker {rank}: worker 0 \(host .*\) has not completed a step for 3\.\d s \(last step: \d+\)\. "
        )
        assert re.search(line, text), text
        assert text.count("is lost") == 0 and text.count("tfdist: ") == 1
    assert "in nowhere" in said[0]


def test_workers_that_the_chief_reaches_and_that_do_not_reach_each_other_say_so():
    # Nobody listens at the ports through which TensorFlow would talk.
    with plain("run", "wait", "wait") as workers:
        codes, said = workers.ends([0, 1, 2])
    assert codes == [LOST] * 3
    for rank, text in enumerate(said):
        line = (
            rf"tfdist: worker {rank}: worker (1|2) \(host .*\) cannot connect to worker (1|2) \(host .*\): "
            r"(?:Connection refused|Multiple exceptions.*)\. Restart all workers\n"
        )
        match = re.fullmatch(line, text)
        assert match and match[1] != match[2], text


def test_the_reason_of_a_worker_that_fails_is_told_to_the_others():
    with plain("run", "fail", "run") as workers:
        codes, said = workers.ends([0, 1, 2])
    assert codes == [LOST, 1, LOST]
    for rank in (0, 2):
        line = rf"tfdist: worker {rank}: worker 1 \(host .*\) has ended: the disk is full\. Restart all workers\n"
        assert re.fullmatch(line, said[rank]), said[rank]


def test_workers_that_have_finished_wait_for_each_other_and_are_not_missed():
    with plain("leave", "leave", "leave") as workers:
        codes, said = workers.ends([0, 1, 2])
    assert codes == [0, 0, 0] and said == ["", "", ""]


def test_a_worker_that_is_lost_before_the_end_is_named_by_those_that_wait_there():
    with plain("leave", "leave", "run") as workers:
        time.sleep(1.0)
        assert [process.poll() for process in workers.processes] == [None] * 3
        workers.hit(2, KILL)
        codes, said = workers.ends([0, 1])
        assert codes == [LOST, LOST]
        assert_named({0: said[0], 1: said[1]}, 2, workers.processes[2], silent=(0.0, SEEN_WITHIN))


def test_what_is_being_written_is_written_before_a_survivor_ends():
    with plain("write", "run") as workers:
        workers.hit(1, KILL)
        workers.processes[0].wait(20)
        assert workers.processes[0].returncode == LOST
        assert workers.processes[0].stdout.read() == "written\n"


def test_a_worker_that_waits_for_one_that_has_finished_names_it():
    """As after a sys.exit on one worker: all others waited for ten minutes."""
    with plain("collect", "leave") as workers:
        codes, said = workers.ends([0, 1])
    assert codes == [LOST, LOST], said
    for rank, text in enumerate(said):
        line = (
            rf"tfdist: worker {rank}: worker 1 \(host .*\) has finished, but worker 0 \(host .*\) has waited for all "
            r"workers for \d+\.\d s, in an exchange of values: every worker must call the same functions of tfdist\. "
        )
        assert re.match(line, text), text


def test_a_slow_callback_or_save_does_not_end_the_run():
    """Longer than the limits, of 3 s, of an execution and of the end of a run."""
    with plain("callback", "behind") as workers:
        codes, said = workers.ends([0, 1])
    assert codes == [0, 0] and said == ["", ""]


ABSENT = """
import time
from tfdist import config
from tfdist.cluster import first_collective, process_exit, strategy
check = first_collective.check
def check_soon(made, monitor, seconds):
    time.sleep(600 * monitor.rank)
    check(made, monitor, 8.0)
first_collective.check = check_soon
process_exit.run_and_exit(lambda: strategy.connect(config.ClusterOptions(connect_seconds=240.0)))
"""


@pytest.mark.slow
def test_a_worker_that_does_not_reach_the_first_all_reduce_is_named():
    """As where NCCL cannot connect: TensorFlow waits without a limit."""
    with started([[sys.executable, "-c", ABSENT]] * 2, topologies.environments(2)) as workers:
        codes, said = workers.ends([0, 1])
        pid = workers.processes[1].pid
    assert codes == [LOST, LOST], said
    line = rf"the first all-reduce did not end within 8 s \(.*\): worker 1 \(host .*, pid {pid}\) did not reach it"
    assert all(re.search(line, text) for text in said), said


COMPILING = """
import sys
from tfdist import config
from tfdist.cluster import first_collective, process_exit, strategy
from tfdist.cluster.devices import gpu_software
build = {"cuda_compute_capabilities": ["sm_80", "compute_90"]}
found = gpu_software.facts([{"device_name": "NVIDIA H100", "compute_capability": (9, 0)}], build, {})
gpu_software.describe = lambda env: found
check = first_collective.check
def check_and_tell(made, monitor, seconds):
    print(f"within {seconds} s", file=sys.stderr, flush=True)
    check(made, monitor, seconds)
first_collective.check = check_and_tell
process_exit.run_and_exit(lambda: strategy.connect(config.ClusterOptions()).leave() or 0)
"""


def test_the_first_all_reduce_may_compile_kernels():
    """Where the driver compiles them from PTX, 120 s may not be enough."""
    with started([[sys.executable, "-c", COMPILING]] * 2, topologies.environments(2)) as workers:
        codes, said = workers.ends([0, 1])
    assert codes == [0, 0] and all("within 600.0 s\n" in text for text in said), said


DYING = """
import os, signal, time
from tfdist import config
from tfdist.cluster import process_exit, strategy
def die(planned, addresses):
    time.sleep(5)  # The other worker's watchdog starts meanwhile, also on a busy machine.
    os.kill(os.getpid(), signal.SIGKILL)
if '"index": 1' in os.environ["TF_CONFIG"]:
    strategy._multi_worker_strategy = die
process_exit.run_and_exit(lambda: strategy.connect(config.ClusterOptions(connect_seconds=240.0)))
"""


@pytest.mark.slow
def test_a_worker_that_dies_before_its_server_of_tensorflow_listens_is_named_at_once():
    with started([[sys.executable, "-c", DYING]] * 2, topologies.environments(2)) as workers:
        pid = workers.processes[1].pid
        codes, said = workers.ends([1, 0])
    assert codes == [-KILL, -KILL], said
    line = rf"tfdist: worker 0: worker 1 \(host .*, pid {pid}\) is lost: it no longer answers \(.*\)\. Restart all .*\n"
    assert re.fullmatch(line, said[1]), said


STARTING = """
import ctypes, os, sys, time
from tfdist.cluster.agent import client
from tfdist.cluster.discovery import environment
spec = environment.resolve(os.environ, port_base=10000, port_count=10000)
members, agent = client.meet(spec, must_match={}, seconds=60)
with agent.start_limit(60.0, 10.0):
    time.sleep(0.5)
print("started", agent.process.pid, flush=True)
sys.stdin.readline()
with agent.start_limit(float(sys.argv[1]), 10.0):
    ctypes.PyDLL(None).sleep(60)  # As TensorFlow does, without letting any thread of Python run.
"""


class Greeter(socketserver.BaseRequestHandler):
    """Greets as the server of gRPC does."""

    def handle(self):
        self.request.sendall(b"hello")


@contextlib.contextmanager
def starting(seconds):
    """Two workers that have met, and the process ids of their agents; they start TensorFlow after a line of input."""
    command, environments = [sys.executable, "-c", STARTING, str(seconds)], topologies.environments(2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(subprocess.Popen(command, env=env, cwd=REPOSITORY, **pipes)) for env in environments
        ]
        try:
            agents = [int(worker.stdout.readline().removeprefix("started ")) for worker in workers]
            yield workers, agents, json.loads(environments[1]["TF_CONFIG"])["cluster"]["worker"]
        finally:
            for worker in workers:
                worker.kill()


def test_a_worker_that_waits_in_the_start_for_one_that_never_came_names_it_and_ends():
    with starting(0.5) as (workers, agents, _):
        os.kill(agents[1], KILL)
        workers[1].kill()
        said = workers[0].communicate("start\n", timeout=60)
        assert workers[0].returncode == -KILL
        assert said == (
            "",
            "tfdist: worker 0: TensorFlow did not start within 0.5 s after a successful rendezvous: worker 1 (host "
            f"{os.uname().nodename}, pid {workers[1].pid}) does not answer (Connection refused). Restart all workers\n",
        )


@pytest.mark.parametrize("alive", ["agent", "server of TensorFlow"])
def test_a_worker_that_waits_in_the_start_for_one_that_dies_names_it_at_once(alive):
    """Whether its agent was there, or only its server of TensorFlow."""
    with starting(600) as (workers, agents, addresses), contextlib.ExitStack() as stack:
        workers[0].stdin.write("start\n")
        workers[0].stdin.flush()
        if alive != "agent":
            port = int(addresses[1].rpartition(":")[2])
            server = stack.enter_context(socketserver.ThreadingTCPServer(("", port), Greeter))
            threading.Thread(target=server.serve_forever).start()
            os.kill(agents[1], KILL)
        time.sleep(5.0)
        assert workers[0].poll() is None
        start = time.monotonic()
        if alive == "agent":
            os.kill(agents[1], KILL)
        else:
            server.shutdown()
            server.server_close()
        said = workers[0].communicate(timeout=60)
        assert workers[0].returncode == -KILL and time.monotonic() - start < 30
        assert said[1] == (
            f"tfdist: worker 0: worker 1 (host {os.uname().nodename}, pid {workers[1].pid}) is lost: it no longer "
            "answers (Connection refused). Restart all workers\n"
        )


def test_a_stopped_worker_and_one_whose_process_has_ended_are_told_apart_in_the_start():
    for number, why in ((STOP, r"no sign of life for \d+\.\d s"), (KILL, "its process has ended")):
        with starting(600) as (workers, _, _):
            workers[0].stdin.write("start\n")
            workers[0].stdin.flush()
            workers[1].send_signal(number)
            said = workers[0].communicate(timeout=60)
            assert workers[0].returncode == -KILL
            assert re.search(rf"worker 1 \(.*\) is lost: it no longer answers \({why}\)\. Restart", said[1]), said


def test_a_worker_whose_agent_is_killed_goes_on_with_another_one():
    """The out-of-memory killer may choose it. The others wait until the new agent, in a thread, has returned."""
    with plain("run", "run", "run") as workers:
        for rank in (1, 0):
            (agent,) = psutil.Process(workers.processes[rank].pid).children()
            agent.kill()
            time.sleep(4.0)
            assert [process.poll() for process in workers.processes] == [None] * 3
        workers.hit(1, KILL)
        codes, said = workers.ends([0, 2])
        assert codes == [LOST, LOST], said
        assert_named({0: said[0], 2: said[1]}, 1, workers.processes[1], silent=(0.0, SEEN_WITHIN))


# A system that starts no child processes.
FORBIDDEN = """
import sys
from tfdist.cluster import process_exit, strategy
sys.executable = "/nowhere/python"
made = strategy.connect
def connect_and_tell():
    found = made()
    print(found.roster.notes, int(found.all_gather([found.rank])[1, 0]))
    found.leave()
    return 0
process_exit.run_and_exit(connect_and_tell)
"""


def test_where_child_processes_are_not_allowed_the_agent_is_a_thread_and_the_start_says_so():
    with started([[sys.executable, "-c", FORBIDDEN]] * 2, topologies.environments(2)) as workers:
        said = [process.communicate(timeout=240) for process in workers.processes]
    assert [process.returncode for process in workers.processes] == [0, 0], said
    assert all("child processes are not allowed here: tfdist's agent runs in a thread" in out for out, _ in said), said


def training(workdir, *options):
    """A command that trains until it is ended, and reports each step."""
    endless = ["--config.train.steps=100000", "--config.evaluation.every.steps=none"]
    endless += ["--config.checkpoint.every.steps=none", "--config.train.call_seconds=0.2"]
    return topologies.command(workdir, *endless, *options)


def await_steps(workdir, workers):
    """Waits until the training has reported steps."""
    deadline = time.monotonic() + 240
    path = workdir / "metrics.jsonl"
    while not path.exists() or path.read_text().count('"train"') < 20:
        for process in workers.processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.5)


@pytest.mark.parametrize(
    ("number", "victim"),
    [(KILL, 0), (KILL, 2), (STOP, 1)],
)
@pytest.mark.slow
def test_a_training_ends_when_a_worker_is_killed_or_stopped(tmp_path, number, victim):
    others = [rank for rank in range(3) if rank != victim]
    command = training(tmp_path, "--config.cluster.heartbeat_seconds=6")
    with started([command] * 3, topologies.environments(3)) as workers:
        await_steps(tmp_path, workers)
        workers.hit(victim, number)
        codes, said = workers.ends(others)
        assert codes == [LOST, LOST], said
        silent = (0.0 if number == KILL else 6.0, SEEN_WITHIN)
        assert_named(dict(zip(others, said, strict=True)), victim, workers.processes[victim], silent=silent)


@pytest.mark.slow
@pytest.mark.skipif(namespaces_missing() is not None, reason=namespaces_missing() or "")
def test_a_training_ends_on_both_sides_of_a_pulled_cable(tmp_path):
    with two_hosts() as hosts, started(*on_two_hosts(hosts, [training(tmp_path)] * 3)) as workers:
        await_steps(tmp_path, workers)
        set_cable(hosts[1], "down")
        codes, said = workers.ends([0, 1, 2])
        assert_lost_on_both_sides(codes, said, workers, 10.0)
