"""A workdir that hangs in each phase of a run: what else goes wrong is named, and the process ends."""

import signal
import subprocess

import hung
import pytest
import topologies
from parameters import slow_except
from processes import started

from tfdist.cluster import interruption

CONFIG = "tests/configs/interrupted.py"
# The limits of a save after an error, and of an execution.
LIMITS = ("--config.cluster.stall_seconds=6.0", "--config.cluster.first_stall_seconds=60.0")
# What hangs in each phase: the paths begin so.
PHASES = {
    "start": "metrics.jsonl",
    "training": "metrics.jsonl",
    "save": "checkpoints/step-00000016",
    "evaluation": "checkpoints/best.json",
    "end": "finished.json",
}
CALLS = ("open", "write", "rename")
# No file is opened or renamed between two steps; at the start the report is, and nothing gets another name there.
NONE = {("training", "open"), ("training", "rename"), ("start", "rename")}
ROWS = [(phase, call) for phase in PHASES for call in CALLS if (phase, call) not in NONE]


def saved(workdir):
    return {path.name for path in workdir.glob("checkpoints/step-????????")}


@pytest.mark.parametrize(("phase", "call"), slow_except(ROWS, [("start", "open"), ("save", "write")]))
def test_a_lost_worker_is_named_while_the_workdir_hangs(tmp_path, phase, call):
    """The chief waited for its workdir without a limit, and named nobody."""
    workdir = tmp_path / "run"
    disk = hung.Disk(tmp_path, workdir / PHASES[phase])
    command = topologies.command(workdir, *LIMITS, "--config.train.steps=26", config=CONFIG)
    environments = [disk.environment(one) for one in topologies.environments(2)]
    if phase != "training":
        disk.hang(call)
    with started([command] * 2, environments, popen=subprocess.Popen) as processes:
        if phase == "training":
            hung.until(lambda: saved(workdir))
            disk.hang(call)
        disk.until_it_hangs()
        before = saved(workdir)
        processes[1].send_signal(signal.SIGKILL)
        output = processes[0].communicate(timeout=120)[0].decode()
    assert processes[0].returncode == interruption.EXIT_PEER_LOST, output
    assert "worker 1 (host" in output and "is lost" in output, output
    assert before <= saved(workdir)


@pytest.mark.parametrize("call", slow_except(CALLS, ["write"]))
def test_an_error_is_told_before_the_files_are_closed(tmp_path, call):
    workdir = tmp_path / "run"
    disk = hung.Disk(tmp_path, workdir / "checkpoints" / "step-00000001")
    disk.hang(call)
    options = ["--config.learning_rate.peak=1e30", "--config.checkpoint.every.steps=1"]
    command = topologies.command(workdir, *LIMITS, *options, config=CONFIG)
    environments = [disk.environment(one) for one in topologies.environments(1)]
    with started([command], environments, popen=subprocess.Popen) as (process,):
        said = [process.stdout.readline().decode()]
        while said[-1] and "The loss is nan" not in said[-1]:
            said.append(process.stdout.readline().decode())
        assert process.poll() is None, said
        rest = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 1 and "The loss is nan" not in rest, rest
    assert f"The workdir {workdir}" in rest
