"""How a run ends is recorded and told: starts.jsonl."""

import os
import pathlib
import signal
import time

import pytest
import topologies
from processes import started, until

from tfdist.cluster import interruption
from tfdist.report import read_back
from tfdist.tools.many_runs import run_state

CONFIG = "tests/configs/interrupted.py"
QUICKLY = "--config.objective.seconds=0.0"
OFTEN = "--config.cluster.heartbeat_seconds=1.0"


def wait_for_steps(workdir: pathlib.Path, count: int = 1) -> None:
    until(lambda: len(topologies.saved_steps(workdir)) >= count, 120)


def test_a_stop_is_recorded_with_its_times(tmp_path):
    # Nothing else asks for a checkpoint: neither steps nor an evaluation that is the best so far.
    asked = ("--config.train.steps=960", "--config.checkpoint.every.steps=900", "--config.checkpoint.best_metric=none")
    command = topologies.command(tmp_path, *asked, OFTEN, config=CONFIG)
    with started([command], topologies.environments(1)) as (process,):
        born = time.time()
        until(lambda: any(start["step"] > 0 for start in read_back.read_starts(tmp_path)), 120)
        assert run_state.read(tmp_path)["state"] == "running"
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=120)[0].decode()
    seconds = time.time() - born
    assert process.returncode == interruption.EXIT_STOPPED, output
    assert len(topologies.saved_steps(tmp_path)) == 1 and run_state.read(tmp_path)["state"] == "stopped"
    (start,) = read_back.read_starts(tmp_path)
    assert start["end"] == "stopped" and f"saved at step {start['step']} in " in output
    parts = start["seconds"]
    assert abs(parts - (start["now"] - start["start"])) < 0.01 * parts
    # As seen from outside, without the exit of the interpreter after the last line.
    assert 0.9 * seconds - 1 < parts < seconds + 0.1, (seconds, start)


@pytest.mark.slow
def test_a_lost_worker_and_a_divergence_are_recorded(tmp_path):
    bad = tmp_path / "bad"
    for victim in (1, 0):
        lost = tmp_path / f"lost{victim}"
        command = topologies.command(lost, "--config.checkpoint.every.steps=8", config=CONFIG)
        with started([command] * 2, topologies.environments(2)) as processes:
            wait_for_steps(lost)
            processes[victim].send_signal(signal.SIGKILL)
            output = processes[1 - victim].communicate(timeout=120)[0].decode()
        assert processes[1 - victim].returncode == interruption.EXIT_PEER_LOST, output
        run = run_state.read(lost)
        assert run["state"] == "lost" and (victim == 0 or "worker 1 (host" in run["trouble"])
    command = topologies.command(bad, QUICKLY, "--config.learning_rate.peak=1e30", config=CONFIG)
    with started([command], topologies.environments(1)) as (process,):
        output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 1 and "The loss is nan" in output, output
    assert run_state.read(bad)["state"] == "diverged"
    assert "The loss is nan" in run_state.read(bad)["trouble"]


@pytest.mark.slow
def test_the_ledger_of_a_killed_run_adds_up(tmp_path):
    command = topologies.command(tmp_path, "--config.checkpoint.every.steps=8", config=CONFIG)
    outside = 0.0
    with started([command], topologies.environments(1)) as (process,):
        born = time.time()
        wait_for_steps(tmp_path, 2)
        process.send_signal(signal.SIGKILL)
        outside += time.time() - born
        process.communicate(timeout=60)
    assert run_state.read(tmp_path)["state"] == "lost"
    with started([command], topologies.environments(1)) as (process,):
        born = time.time()
        output = process.communicate(timeout=120)[0].decode()
        outside += time.time() - born
    assert process.returncode == 0, output
    assert " in this start\n" in output
    assert run_state.read(tmp_path)["state"] == "finished"
    starts = read_back.read_starts(tmp_path)
    assert [start["end"] for start in starts] == ["", "finished"]
    assert starts[-1]["step"] == 96
    seconds = [start["seconds"] for start in starts]
    assert seconds == pytest.approx([start["now"] - start["start"] for start in starts], rel=0.01)
    whole = sum(seconds)
    # A line is as old as the last report when its process is killed.
    assert 0.9 * outside - 3 < whole < outside + 0.1, (outside, starts)
    assert os.listdir(tmp_path).count("starts.jsonl") == 1
