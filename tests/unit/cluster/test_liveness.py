"""What workers know of each other while a run lasts, in parts that need no second process."""

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
from tfdist.cluster import collective_guard
from tfdist.cluster.control import decision, heartbeat_monitor, peers
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.control.peers import Peers
from tfdist.cluster.discovery import worker_spec
from tfdist.cluster.several_workers import multi_worker


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
    found = decision.missing([*range(15, 40), 60], addresses, 100, 9.0)
    assert found["error"] == "MissingWorkersError" and "ranks 15-39, 60 on n[3-7,12]" in found["message"]
    assert "rank 16 (n3:12346)" in decision.missing([15, 16], addresses, 100, 9.0)["message"]
    known = make_peers(size=40)
    assert "workers 20-29 (hosts n[20-29]) are lost" in known.describe_lost(range(20, 30))
    assert known.describe_lost([1, 3]).count("11.0 s ago, then at step 7") == 2


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


def stalls(monitor, now):
    return bool(heartbeat_monitor.describe_stall(monitor, now))


def test_limits_of_a_stall():
    """An execution may take 600 s, pauses not counted; the start an hour, since the first wait for others."""
    monitor = make_monitor()
    assert not stalls(monitor, 1e9)
    with monitor.in_collective("a broadcast"), monitor.in_collective("an exchange of values"):
        since = monitor.collective[1]
        assert (stalls(monitor, since + 3599.0), stalls(monitor, since + 3601.0)) == (False, True)
        monitor.has_executed = True  # Later, a worker may wait for the chief's callbacks for any time.
        assert not stalls(monitor, since + 3601.0)
    monitor.last_execution = 1000.0
    assert (stalls(monitor, 1600.0), stalls(monitor, 1601.0)) == (False, True)
    monitor.last_pause = 1500.0
    assert (stalls(monitor, 2100.0), stalls(monitor, 2101.0)) == (False, True)


def test_one_worker_is_stalled_only_within_a_call():
    """Outside of its calls it may be in a notebook, at the prompt, and nobody waits for it."""
    monitor = make_monitor(size=1)
    monitor.note_progress(5)
    assert not stalls(monitor, 1e9)
    with monitor.in_collective("an execution"):
        since = monitor.collective[1]
        assert (stalls(monitor, since + 599.0), stalls(monitor, since + 601.0)) == (False, True)
    assert not stalls(monitor, 1e9)


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


def test_the_first_all_reduce_names_the_missing_workers_or_gives_advice():
    for waiting, words in {(1,): ": worker 2 (host n2, pid 12) did not reach it", (1, 2): "NCCL_SOCKET_IFNAME"}.items():
        known = make_peers(told=(told := []))
        for rank in waiting:
            known.peers[rank].waits = (multi_worker.PURPOSE, 5.0)
        absent_in = [multi_worker.PURPOSE, multi_worker._ADVICE]
        known.receive_from_worker({"lost": "it did not end: ", "absent_in": absent_in})
        assert words in told[0]["lost"], told


def test_methods_of_keras_say_what_to_call_instead(monkeypatch):
    """On one of several workers `predict` waited for the others, which never came."""
    for name in ("fit", "evaluate", "predict"):
        monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name))
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    collective_guard.reject_keras_methods(strategy)
    with pytest.raises(RuntimeError, match=r"model\.fit .* tfdist\.fit\(cluster, model, \.\.\.\)"):
        model.fit(np.zeros([3, 2]), np.zeros([3, 1]), verbose=0)
    with pytest.raises(RuntimeError, match=r"tfdist\.predict.*cluster\.alone\(model\)"):
        model.predict(np.zeros([3, 2]), verbose=0)
    assert other.predict(np.zeros([3, 2]), verbose=0).shape == (3, 1)
    with collective_guard.ScriptCluster.alone(None, model):
        assert model.predict(np.zeros([3, 2]), verbose=0).shape == (3, 1)
        with pytest.raises(RuntimeError, match=r"cluster\.alone runs on one worker only"):
            model.evaluate(np.zeros([3, 2]), np.zeros([3, 1]))
    with pytest.raises(RuntimeError, match=r"cluster\.alone"):
        model.predict(np.zeros([3, 2]), verbose=0)
