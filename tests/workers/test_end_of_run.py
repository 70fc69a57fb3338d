"""How a run ends is recorded and told: starts.jsonl."""

import signal
import time

import topologies
from processes import started, until

from tfdist.cluster import interruption
from tfdist.report import read_back
from tfdist.tools.many_runs import run_state


def test_a_stop_is_recorded_with_its_times(tmp_path):
    # Nothing else asks for a checkpoint: neither steps nor an evaluation that is the best so far.
    asked = ("--config.train.steps=960", "--config.checkpoint.every.steps=900", "--config.checkpoint.best_metric=none")
    asked += ("--config.cluster.heartbeat_seconds=1.0",)
    command = topologies.command(tmp_path, *asked, config="tests/configs/interrupted.py")
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
