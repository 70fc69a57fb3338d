"""What workers know of each other while a run lasts, in parts that need no second process."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from launching import REPOSITORY

from tfdist import config
from tfdist.cluster import collective_guard, error_report, interruption
from tfdist.cluster.control import decision, heartbeat_monitor, keys, listener, peers, wire
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.control.peers import Peers
from tfdist.cluster.discovery import worker_spec
from tfdist.cluster.several_workers import start

KEY = keys.Key(b"k" * 64)


def make_monitor(size: int = 3, rank: int = 0) -> HeartbeatMonitor:
    members = [{"rank": r, "address": f"n{r}:1", "host": f"n{r}", "pid": 10 + r} for r in range(size)]
    return HeartbeatMonitor(rank=rank, members=members, options=config.ClusterOptions())


def make_peers(size: int = 3, told: list[dict] | None = None) -> Peers:
    """What the chief's watchdog process knows, whose last heartbeats came 11 s ago, at step 7."""
    members, told = {rank: (f"n{rank}", 10 + rank) for rank in range(size)}, [] if told is None else told
    limits = {"heartbeat_seconds": 10.0, "connect_seconds": 120.0}
    known = Peers(rank=0, size=size, members=members, tell=told.append, started=True, **limits)
    for peer in known.peers.values():
        peer.step, peer.last_heartbeat = 7, time.monotonic() - 11.0
    return known


def test_the_time_to_connect_grows_with_the_job():
    assert worker_spec.connect_seconds(None, 2) == 120.0 and worker_spec.connect_seconds(None, 1000) == 600.0
    assert worker_spec.connect_seconds(5.0, 1000) == 5.0
    assert config.ClusterOptions().connect_seconds is None


def test_many_missing_or_lost_workers_are_named_by_their_hosts():
    addresses = [f"n{rank // 5}:{12345 + rank % 5}" for rank in range(100)]
    message = decision.missing([*range(15, 40), 60], addresses, 100, 9.0)["message"]
    assert message.splitlines()[1:-1] == ["  ranks 15-39, 60 on n[3-7,12]"]
    few = decision.missing([15, 16], addresses, 100, 9.0)["message"]
    assert few.splitlines()[1:-1] == ["  rank 15 (n3:12345)", "  rank 16 (n3:12346)"]
    known = make_peers(size=40)
    assert known.note_lost(range(20, 30)) == (
        "workers 20-29 (hosts n[20-29]) are lost: last heartbeats up to 11.0 s ago"
    )
    assert known.note_lost([1, 3]).count(" is lost: last heartbeat 11.0 s ago, then at step 7") == 2


def test_each_message_after_a_loss_names_the_loss():
    """Of 512 workers, seven that connected to the chief later had never heard of it, and named the chief."""
    known = make_peers(told=(told := []))
    assert "lost" not in known.status()
    known.mark_lost("worker 2 is lost")
    known.mark_lost("worker 1 is lost")
    assert known.status()["lost"] == "worker 2 is lost"
    monitor = make_monitor()
    assert heartbeat_monitor.reason_of_exit(monitor) == ""
    for message in told:
        monitor.receive(message)
    assert heartbeat_monitor.reason_of_exit(monitor) == "worker 2 is lost. Restart all workers"


def test_the_chief_of_a_large_job_reads_a_limited_number_of_heartbeats_a_second():
    assert peers.interval(2, 10.0) == peers.interval(200, 10.0) == 1.0 and peers.interval(2, 2.0) == 0.5
    assert peers.interval(1024, 10.0) == 5.0 and peers.interval(1024, 30.0) == 1024 / 200


def test_a_worker_that_connects_causes_no_message_to_the_others():
    known = make_peers(size=7)
    sent: list[list[bytes]] = []

    async def main() -> None:
        waiting = listener.listen(0)
        address = ("127.0.0.1", waiting.getsockname()[1])
        serving = asyncio.ensure_future(known._serve(waiting, KEY))
        channels = []
        for rank in range(1, 7):
            channels.append(await wire.connect(address, KEY))
            channels[-1].send({"rank": rank, "pid": 10 + rank, "step": 0})
            sent.append([await channels[-1].receive()])
        for one, messages in zip(channels, sent, strict=True):
            with contextlib.suppress(asyncio.TimeoutError):
                while True:
                    messages.append(await asyncio.wait_for(one.receive(), 0.1))
        known.all_finished = True  # From now on a closed connection is no loss.
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(main())
    assert [len(messages) for messages in sent] == [1] * 6


def test_malformed_heartbeats_are_rejected():
    """Of another release, say: the connection is closed, and nothing else happens."""
    good = {"rank": 1, "pid": 11, "step": 3, "waits": ["a broadcast", 1.5], "paused": False}
    known = make_peers()
    known._receive(1, good)
    assert (known.peers[1].step, known.peers[1].waits) == (3, ("a broadcast", 1.5))
    for name, values in {"step": [None, -1, 1.5, "3", []], "waits": [5, "ab", ["a", 1], {}], "lost": [5, None]}.items():
        for value in values:
            with pytest.raises(ValueError, match="not a heartbeat"):
                known._receive(1, good | {name: value})
    assert known.peers[1].step == 3 and not known.loss


ERROR = """Collective ops is aborted by: Connection reset by peer
The error could be from a previous operation. Restart your program to reset.
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling
/tensorflow.WorkerService/RecvBuf: from /job:worker/replica:0/task:0"""


def test_the_worker_in_an_error_of_tensorflow_is_named(monkeypatch):
    """Its line was cut off: the first one alone was shown."""
    monkeypatch.setattr(heartbeat_monitor, "_monitor", make_monitor())
    assert heartbeat_monitor.named_workers(ERROR) == ["worker 2 (host n2, pid 12)"]
    assert heartbeat_monitor.named_workers("task:7 of /job:worker/task:9") == []


def test_workers_that_are_missing_before_the_start_are_lost_workers(capfd):
    """As if they died later: the exit code says to restart all workers."""
    error = decision.MissingWorkersError("1 of 2 workers did not connect within 5 s.")
    assert error_report.report_exception(error) == interruption.EXIT_PEER_LOST
    assert capfd.readouterr().err.endswith("1 of 2 workers did not connect within 5 s.\n")
    for made in (decision.missing([1], ["a:1", "b:2"], 2, 5.0), decision.no_chief({"a:1": "refused"}, 5.0)):
        assert made["error"] == "MissingWorkersError"


def test_the_time_of_a_pause_is_no_stall():
    monitor = make_monitor()
    assert heartbeat_monitor.describe_stall(monitor, 1e9) == ""
    monitor.progress.last_execution = 1000.0
    assert heartbeat_monitor.describe_stall(monitor, 1600.0) == ""
    assert heartbeat_monitor.describe_stall(monitor, 1601.0).endswith(
        "has not completed a step for 601.0 s (last step: 0)"
    )
    monitor.progress.last_pause = 1500.0
    assert heartbeat_monitor.describe_stall(monitor, 2100.0) == "" and heartbeat_monitor.describe_stall(monitor, 2101.0)


def test_one_worker_is_stalled_only_within_a_call():
    """Outside of its calls it may be in a notebook, at the prompt, and nobody waits for it."""
    monitor = make_monitor(size=1)
    monitor.note_progress(5)
    assert heartbeat_monitor.describe_stall(monitor, 1e9) == ""
    with monitor.in_collective("an execution"):
        since = monitor.progress.collective[1]
        assert heartbeat_monitor.describe_stall(monitor, since + 599.0) == ""
        assert heartbeat_monitor.describe_stall(monitor, since + 601.0).endswith(
            "not completed a step for 601.0 s (last step: 5)"
        )
    assert heartbeat_monitor.describe_stall(monitor, 1e9) == ""


def test_a_hang_before_the_first_execution_has_ended_is_a_stall():
    """The timer began with the end of the first execution: a hang before was never noticed."""
    monitor = make_monitor()
    with monitor.in_collective("a broadcast"), monitor.in_collective("an exchange of values"):
        since = monitor.progress.collective[1]
        assert heartbeat_monitor.describe_stall(monitor, since + 3599.0) == ""
        text = heartbeat_monitor.describe_stall(monitor, since + 3601.0)
        assert text.startswith("worker 0 (host n0, pid 10) has waited for all workers for 3601.0 s, in a broadcast")
        monitor.progress.started = True  # Later, a worker may wait for the chief's callbacks for any time.
        assert heartbeat_monitor.describe_stall(monitor, since + 3601.0) == ""
    assert monitor.progress.collective is None


SUSPENDED = """
import time
from tfdist import config
from tfdist.cluster.control import heartbeat_monitor
options = config.ClusterOptions(heartbeat_seconds=1.0, first_stall_seconds=2.0)
monitor = heartbeat_monitor.start(rank=0, members=[{"host": "n0", "pid": 1}], options=options)
with monitor.in_collective("an execution"):
    print("waits", flush=True)
    for _ in range(11):
        time.sleep(0.1)
print(monitor.loss)
"""


def test_the_time_of_a_suspension_is_no_stall():
    """A job that Slurm had suspended while it compiled was ended when it went on."""
    command = [sys.executable, "-c", SUSPENDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == "{}\n" and process.returncode == 0


def test_the_time_of_a_suspension_before_the_thread_runs_is_no_stall():
    monitor = make_monitor(size=1)
    monitor.created -= 4000.0
    monitor.progress.collective = ("an execution", monitor.created)
    heartbeat_monitor.look(monitor, monitor.created, time.monotonic())
    assert not monitor.loss


def test_the_first_all_reduce_names_the_missing_workers_or_gives_advice():
    for waiting, words in {(1,): ": worker 2 (host n2, pid 12) did not reach it", (1, 2): "NCCL_SOCKET_IFNAME"}.items():
        known = make_peers(told=(told := []))
        for rank in waiting:
            known.peers[rank].waits = (start.PURPOSE, 5.0)
        known.hear({"lost": "it did not end: ", "absent_in": [start.PURPOSE, start._ADVICE]})
        assert words in told[0]["lost"], told


def test_predict_of_keras_says_what_to_call_instead(monkeypatch):
    """On one of several workers it waited for the others, which never came."""
    monkeypatch.setattr(keras.Model, "predict", keras.Model.predict)
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    collective_guard.reject_keras_predict(strategy)
    with pytest.raises(RuntimeError, match=r"tfdist\.predict.*cluster\.alone\(model\)"):
        model.predict(np.zeros([3, 2]), verbose=0)
    assert other.predict(np.zeros([3, 2]), verbose=0).shape == (3, 1)
    with collective_guard.ScriptCluster.alone(None, model):
        assert model.predict(np.zeros([3, 2]), verbose=0).shape == (3, 1)
        with pytest.raises(RuntimeError, match=r"cluster\.alone runs on one worker only"):
            model.evaluate(np.zeros([3, 2]), np.zeros([3, 1]))
    with pytest.raises(RuntimeError, match=r"cluster\.alone"):
        model.predict(np.zeros([3, 2]), verbose=0)
