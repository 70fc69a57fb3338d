"""Workers that die, hang or vanish: named by the others, which all end. On real processes and a real network."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import forked
import processes
import pytest
import topologies
from launching import worker_environment
from networks import address, namespaces_missing, set_cable, two_hosts
from parameters import slow_except

from tfdist.cluster import interruption

LOST, KILL, STOP = interruption.EXIT_PEER_LOST, signal.SIGKILL, signal.SIGSTOP
# How many seconds of silence a survivor may name at the most.
SEEN_WITHIN = 15.0
# A worker whose main thread does what its argument says, without a step: it hangs where another one is lost.
WORKER = """
import ctypes, os, sys, threading, time
from tfdist import config
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import heartbeat_monitor, keys, rendezvous, watchdog
rank = (found := environment.resolve(os.environ, port_base=10000, port_count=10000)).rank
what, seconds = sys.argv[1], float(sys.argv[2])
listener = watchdog.listen(found)
port = {"heartbeat_port": listener.getsockname()[1]} if listener else {}
members = rendezvous.rendezvous(found, must_match={}, seconds=60, metadata=port)
own = keys.load(found.job, os.environ)
options = config.ClusterOptions(heartbeat_seconds=seconds, stall_seconds=3.0 if what in ("stall", "behind") else None)
options.connect_seconds = 15.0 if what == "hang" else None
watching = watchdog.start(rank=rank, members=members, listener=listener, options=options, key=own)
if what not in ("start", "hang"):
    watching.tell({"started": True})
watching.note_progress(step := 1)
print("ready", flush=True)
until = time.monotonic() + {"run": 600.0, "stall": 0.0}.get(what, 1.0)
while time.monotonic() < until:
    watching.note_progress(step := step + 1)
    time.sleep(0.05)
if what in ("start", "hang"):
    ctypes.PyDLL(None).sleep(600)  # As TensorFlow does, without letting any thread of Python run.
if what == "collect":
    with watching.in_collective("an exchange of values"):
        time.sleep(600)
if what == "callback":  # Or a last save.
    with watching.pause_timers():
        time.sleep(8)
if what == "behind":  # In the next execution, which begins when the callback has ended.
    time.sleep(4.5)
if what == "no threads":
    threading.stack_size(1 << 46)  # More than there is: none can be started.
    time.sleep(600)
if what == "busy":
    ctypes.PyDLL(None).sleep(5)  # As json.loads of a large file does: without letting any thread of Python run.
if what == "write":
    threading.Thread(target=lambda: (time.sleep(4.5), print("written", flush=True))).start()
def nowhere():
    time.sleep(600)
if what in ("stall", "write"):
    nowhere()
if what == "fail":
    heartbeat_monitor.reserve_exit()
    heartbeat_monitor.announce_failure("the disk is full.")
    os._exit(1)
watching.wait_until_finished(3.0 if what == "behind" else 60.0)
"""


def started(commands, environments):
    """Starts workers, whose errors go to a pipe of their own; none is left behind."""
    return processes.started(commands, environments, text=True, stderr=subprocess.PIPE)


def ends(workers, ranks):
    """Waits for the end of these, which a busy machine may delay; returns their exit codes and errors."""
    said = [workers[rank].communicate(timeout=120)[1] for rank in ranks]
    return [workers[rank].returncode for rank in ranks], said


# One group of workers starts at a time.
STARTING_GROUP = threading.Lock()


@contextlib.contextmanager
def plain(*tasks, beats=True):
    """Starts workers that do these tasks and train nothing. They have exchanged heartbeats, unless `beats` is False."""
    commands = [[sys.executable, "-c", WORKER, task, "2.0"] for task in tasks]
    with contextlib.ExitStack() as stack:
        with STARTING_GROUP:
            workers = stack.enter_context(started(commands, topologies.environments(len(tasks))))
            for process in workers:
                assert process.stdout.readline() == "ready\n", process.communicate()[1]
        if beats:
            time.sleep(1.6)  # The second beat names a step.
        yield workers


class Scene(NamedTuple):
    """A group of workers: what each does, a signal to one of them, and whose ends are awaited."""

    tasks: tuple[str, ...]
    ends: tuple[int, ...]
    victim: int | None = None
    number: int = KILL
    beats: bool = True


class Ended(NamedTuple):
    """Exit codes, errors and output of the workers whose ends were awaited, and all processes."""

    codes: list[int]
    said: list[str]
    printed: list[str]
    processes: list[subprocess.Popen]


def play(scene):
    """Runs the group of a scene; returns how its workers have ended."""
    with plain(*scene.tasks, beats=scene.beats) as workers:
        if scene.victim is not None:
            workers[scene.victim].send_signal(scene.number)
        both = [workers[rank].communicate(timeout=120) for rank in scene.ends]
        codes = [workers[rank].returncode for rank in scene.ends]
        return Ended(codes, [errors for _, errors in both], [output for output, _ in both], workers)


def killed_or_stopped(number, victim):
    return Scene(("run",) * 3, tuple(rank for rank in range(3) if rank != victim), victim, number)


# The groups that run side by side, as most of them wait; the longest first. `SLOW` are those of slow tests.
SCENES = {
    "slow callback": Scene(("callback", "behind"), (0, 1)),
    "busy": Scene(("leave", "busy"), (0, 1)),
    "busy chief": Scene(("busy", "leave"), (0, 1)),
    "write": Scene(("write", "run"), (0,), victim=1),
    "finished early": Scene(("collect", "leave"), (0, 1)),
    "stalled": Scene(("stall", "run"), (0, 1)),
    "hanging start": Scene(("hang", "hang"), (0, 1)),
    "killed in the start": Scene(("start", "start", "run"), (0, 1), victim=2),
    "no threads": Scene(("no threads", "run"), (0,), victim=1),
    (STOP, 0): killed_or_stopped(STOP, 0),
    (KILL, 2): killed_or_stopped(KILL, 2),
    "killed before its first heartbeat": Scene(("run",) * 3, (0, 1), victim=2, beats=False),
    "failed": Scene(("run", "fail", "run"), (0, 1, 2)),
    "finished": Scene(("leave", "leave", "leave"), (0, 1, 2)),
}


SLOW = ("write", "finished early", "hanging start", "killed in the start", "no threads", (KILL, 2), "finished")
SLOW += ("killed before its first heartbeat", "busy chief")


@pytest.fixture(scope="module")
def ended():
    """Scene -> how the workers of its group have ended; all by default, or all slow ones, are played at once."""
    for _ in range(2):  # Starts both servers of forked processes: workers that begin seconds apart would say so.
        forked.run([sys.executable, "-c", ""], check=True)
    groups = [[name for name in SCENES if (name in SLOW) == slow] for slow in (True, False)]
    slow, quick = (processes.measure_groups(lambda name: play(SCENES[name]), names) for names in groups)
    return lambda name: (slow if name in SLOW else quick)(name)


def on_two_hosts(hosts, commands):
    """Returns the commands and environments of three workers: two on n9, the chief among them, and one on n10."""
    addresses = [f"{address(rank == 2)}:{port}" for rank, port in enumerate(topologies.free_ports(3))]
    cluster = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}} for rank in range(3)]
    environments = [worker_environment(TF_CONFIG=json.dumps(one)) for one in cluster]
    return [[*hosts[rank == 2], *command] for rank, command in enumerate(commands)], environments


def assert_named(said, lost, process, *, host=None, silent, step=r"\d+"):
    """Asserts that each survivor wrote one line that names the worker, and for how many seconds it was silent."""
    who = rf"worker {lost} \(host {re.escape(host or os.uname().nodename)}, pid {process.pid}\)"
    for rank, text in said.items():
        lost_line = rf"{who} is lost: last heartbeat (\d+\.\d) s ago, then at step {step}\. Restart all .*\n"
        line = rf"tfdist: worker {rank}: {lost_line}"
        # Not what TensorFlow's import writes, and what the rendezvous waits for.
        own = "".join(one for one in text.splitlines(keepends=True) if one.startswith("tfdist: worker"))
        match = re.fullmatch(line, own)
        assert match, text
        assert silent[0] <= float(match[1]) <= silent[1], text


@pytest.mark.parametrize(("number", "victim"), slow_except([(KILL, 2), (KILL, 0), (STOP, 2), (STOP, 0)], [(STOP, 0)]))
def test_a_worker_that_is_killed_or_stopped_is_named_by_all_others(request, number, victim):
    together = (number, victim) in SCENES
    scene = killed_or_stopped(number, victim)
    seen = request.getfixturevalue("ended")((number, victim)) if together else play(scene)
    assert seen.codes == [LOST, LOST], seen.said
    silent = (0.0 if number == KILL else 2.0, SEEN_WITHIN)
    assert_named(dict(zip(scene.ends, seen.said, strict=True)), victim, seen.processes[victim], silent=silent)


@pytest.mark.slow
def test_a_worker_that_is_killed_before_its_first_heartbeat_is_named(ended):
    """Its watchdog process was still starting and ended in silence: the others waited for two minutes."""
    seen = ended("killed before its first heartbeat")
    assert seen.codes == [LOST, LOST], seen.said
    who = f"worker 2 (host {os.uname().nodename}, pid {seen.processes[2].pid}) is lost"
    assert all(who in text for text in seen.said)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("no threads", LOST), ("killed in the start", -KILL)])
def test_workers_that_cannot_end_by_a_thread_of_their_own_name_the_lost_one(ended, name, code):
    """In the start, TensorFlow waits for ten minutes, deaf to signals: the watchdog processes end their workers."""
    seen, victim = ended(name), SCENES[name].victim
    assert set(seen.codes) == {code}, seen.said
    assert_named(dict(enumerate(seen.said)), victim, seen.processes[victim], silent=(0.0, SEEN_WITHIN))


@pytest.mark.parametrize(
    "name", slow_except(["busy", "busy chief", "slow callback", "finished"], ["busy", "slow callback"])
)
def test_workers_that_are_busy_slow_or_finished_are_not_lost(ended, name):
    """Busy: without letting threads run. The callback takes longer than the limits of an execution and of the end."""
    codes, said, *_ = ended(name)
    assert set(codes) == {0} and set(said) == {""}, said


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_is_busy_is_named():
    with plain("run", "busy") as workers:
        time.sleep(3.0)
        assert workers[0].poll() is None
        workers[1].send_signal(STOP)
        codes, said = ends(workers, [0])
    assert codes == [LOST]
    assert_named({0: said[0]}, 1, workers[1], silent=(2.0, SEEN_WITHIN))


@pytest.mark.slow
def test_workers_continue_after_all_were_stopped_together():
    with plain("run", "run") as workers:
        for number in (STOP, signal.SIGCONT):
            for process in workers:
                process.send_signal(number)
            time.sleep(3.5)
        assert [process.poll() for process in workers] == [None, None]


def test_a_worker_prints_all_stacks_when_its_calls_never_end(ended):
    codes, said, *_ = ended("stalled")
    assert codes == [LOST, LOST]
    for rank, text in enumerate(said):
        assert re.search(rf"tfdist: worker {rank}: worker 0 \(.*\) .* for 3\.\d s \(last step: \d+\)", text), text
        assert text.count("is lost") == 0 and text.count("tfdist: ") == 1
    assert "in nowhere" in said[0]


def test_the_reason_of_a_worker_that_fails_is_told_to_the_others(ended):
    codes, said, *_ = ended("failed")
    assert codes == [LOST, 1, LOST]
    for rank in (0, 2):
        line = rf"tfdist: worker {rank}: worker 1 \(host .*\) has ended: the disk is full\. Restart all workers\n"
        assert re.fullmatch(line, said[rank]), said[rank]


@pytest.mark.slow
def test_a_worker_that_is_lost_before_the_end_is_named_by_those_that_wait_there():
    with plain("leave", "leave", "run") as workers:
        time.sleep(1.0)
        assert [process.poll() for process in workers] == [None] * 3
        workers[2].send_signal(KILL)
        codes, said = ends(workers, [0, 1])
        assert codes == [LOST, LOST]
        assert_named({0: said[0], 1: said[1]}, 2, workers[2], silent=(0.0, SEEN_WITHIN))


@pytest.mark.slow
def test_a_survivor_finishes_its_write_before_it_ends(ended):
    assert ended("write").codes == [LOST] and ended("write").printed == ["written\n"]


@pytest.mark.slow
def test_a_worker_that_waits_for_one_that_has_finished_names_it(ended):
    """As after a sys.exit on one worker: all others waited for ten minutes."""
    codes, said, *_ = ended("finished early")
    assert codes == [LOST, LOST], said
    for rank, text in enumerate(said):
        line = rf"tfdist: worker {rank}: worker 1 \(host .*\) has finished, but worker 0 \(host .*\) .* for \d+\.\d s, "
        assert re.match(line, text), text


# What workers begin with that connect, and do nothing else.
CONNECTS = """
import os, signal, socket, struct, sys, time
import tensorflow as tf
from tfdist import config
from tfdist.cluster import process_exit, strategy
from tfdist.cluster.devices import replicas
from tfdist.cluster.several_workers import multi_worker
"""


def ends_of_two(program):
    """Runs two workers, which connect; returns their exit codes, errors and pids."""
    with started([[sys.executable, "-c", CONNECTS + program]] * 2, topologies.environments(2)) as workers:
        return *ends(workers, [1, 0]), [process.pid for process in workers]


ABSENT = """
count = multi_worker.count_connected
def count_soon(made, monitor, seconds, one):
    time.sleep(600 * monitor.rank)
    return count(made, monitor, 8.0, one)
multi_worker.count_connected = count_soon
process_exit.run_and_exit(lambda: strategy.connect(config.ClusterOptions(connect_seconds=240.0)))
"""


@pytest.mark.slow
def test_a_worker_that_does_not_reach_the_first_all_reduce_is_named():
    """As where NCCL cannot connect: TensorFlow waits without a limit."""
    codes, said, pids = ends_of_two(ABSENT)
    assert codes == [LOST, LOST], said
    line = rf"the first all-reduce did not end within 8 s \(.*\): worker 1 \(host .*, pid {pids[1]}\) did not reach it"
    assert all(re.search(line, text) for text in said), said


RESET = """
def reset():
    cluster = strategy.connect(config.ClusterOptions(connect_seconds=240.0))
    if cluster.rank == 1:
        one = replicas.rings[0]._to_next
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Its end is a reset.
        one.close()
    tf.function(lambda: replicas.rings[0].sum([tf.ones([1000])], 0))()
process_exit.run_and_exit(reset)
"""


@pytest.mark.slow
def test_workers_whose_connection_is_reset_say_so():
    """By a firewall, for example: both live. Over gRPC they ended with 76, and over TCP with 1 and a stack."""
    codes, said, _ = ends_of_two(RESET)
    assert codes == [LOST, LOST], said
    for rank, text in zip((1, 0), said, strict=True):
        line = rf"tfdist: worker {rank}: worker (0|1) \(host .*\) has no connection with worker (0|1) \(host .*\): .*"
        match = re.fullmatch(rf"{line}\. Restart all workers", text.splitlines()[-1])  # After those of the start.
        assert match and match[1] != match[2] and "Traceback" not in text, text


DYING = """
def die(planned, addresses):
    time.sleep(5)  # The watchdogs start meanwhile, also on a busy machine.
    os.kill(os.getpid(), signal.SIGKILL)
if '"index": 1' in os.environ["TF_CONFIG"]:
    multi_worker._make_strategy = die
process_exit.run_and_exit(lambda: strategy.connect(config.ClusterOptions(connect_seconds=240.0)))
"""


@pytest.mark.slow
def test_a_worker_that_dies_before_its_server_listens_is_named_at_once():
    codes, said, pids = ends_of_two(DYING)
    assert codes == [-KILL, -KILL], said
    line = rf"tfdist: worker 0: worker 1 \(host .*, pid {pids[1]}\) is lost: last heartbeat .*\. Restart all workers\n"
    assert re.fullmatch(line, said[1]), said


@pytest.mark.slow
def test_workers_whose_tensorflow_does_not_start_end_and_say_so(ended):
    codes, said, *_ = ended("hanging start")
    assert codes == [-KILL, -KILL], said
    assert all("TensorFlow did not start within 15 s after a successful rendezvous" in text for text in said), said


def training(workdir, *options):
    """A command that trains until it is ended, and reports each step."""
    endless = ["--config.train.steps=100000", "--config.evaluation.every.steps=none"]
    endless += ["--config.checkpoint.every.steps=none", "--config.train.call_seconds=0.2"]
    return topologies.command(workdir, *endless, *options)


def await_steps(workdir, workers):
    """Waits until the training has reported steps."""

    def reported():
        assert all(process.poll() is None for process in workers), workers[0].communicate()
        path = workdir / "metrics.jsonl"
        return path.exists() and path.read_text().count('"train"') >= 20

    processes.until(reported, 240)
    time.sleep(1.5)


@pytest.mark.slow
def test_a_training_ends_when_a_worker_is_stopped(tmp_path):
    """One in which a worker is killed: tests/workers/test_resume.py."""
    command = training(tmp_path, "--config.cluster.heartbeat_seconds=6")
    with started([command] * 3, topologies.environments(3)) as workers:
        await_steps(tmp_path, workers)
        workers[1].send_signal(STOP)
        codes, said = ends(workers, [0, 2])
        assert codes == [LOST, LOST], said
        assert_named({0: said[0], 2: said[1]}, 1, workers[1], silent=(6.0, SEEN_WITHIN))


@pytest.mark.slow
@pytest.mark.skipif(namespaces_missing() is not None, reason=namespaces_missing() or "")
def test_a_training_ends_on_both_sides_of_a_pulled_cable(tmp_path):
    with two_hosts() as hosts, started(*on_two_hosts(hosts, [training(tmp_path)] * 3)) as workers:
        await_steps(tmp_path, workers)
        set_cable(hosts[1], "down")
        codes, said = ends(workers, [0, 1, 2])
        assert codes == [LOST] * 3, said
        # n9's workers name n10's, and n10's the chief.
        assert_named({0: said[0], 1: said[1]}, 2, workers[2], host="n10", silent=(10.0, SEEN_WITHIN))
        assert_named({2: said[2]}, 0, workers[0], host="n9", silent=(10.0, SEEN_WITHIN))


@pytest.mark.slow
def test_storing_the_evaluation_split_is_no_stall(tmp_path):
    """The evaluation came before the checkpoint, so a restart did not help either."""
    source = json.dumps({"target": "tests.support.lab:Slow", "seconds": 20.0})
    options = ["--config.cluster.stall_seconds=10", "--config.data.shards=fixed", "--config.data.cache=raw"]
    options += [f"--config.data.source={source}", "--config.evaluation.every.steps=4", "--config.train.steps=4"]
    line = topologies.command(tmp_path, *options, config="tests/configs/interrupted.py")
    codes, outputs = processes.run([line] * 2, topologies.environments(2))
    assert codes == [0, 0], outputs


@pytest.mark.parametrize("implementation", slow_except(["tcp", "ring"], ["ring"]))
def test_workers_that_compute_different_graphs_are_told_so(tmp_path, implementation):
    """Over TCP a closed connection was named first, and over gRPC there was a stack; a restart does not help."""
    objective = json.dumps({"target": "tests.support.lab:differing"})
    options = [f"--config.objective={objective}", f"--config.communication.implementation={implementation}"]
    line = topologies.command(tmp_path, *options, config="tests/configs/interrupted.py")
    codes, outputs = processes.run([line] * 2, topologies.environments(2))
    assert 1 in codes, outputs
    for output in outputs:
        assert "compute different graphs" in output and "Traceback" not in output, output
