"""A workdir that hangs in each phase of a run: it, and what else goes wrong, is named, and the process ends."""

import signal
import subprocess

import hung
import pytest
import topologies
from parameters import slow_except
from processes import started

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption

CONFIG = "tests/configs/interrupted.py"
# The limits of a save after an error, of an execution, and of a wait for a file.
LIMITS = ("--config.cluster.stall_seconds=6.0", "--config.cluster.first_stall_seconds=60.0")
CALLS = ("open", "write", "rename")
# What hangs in each phase: the paths begin so.
PHASES = {
    ("start", "open"): "metrics.jsonl",
    ("start", "write"): "metrics.jsonl",
    ("start", "rename"): "environment.json",
    # The file that says that the run is alive. Nothing gets another name between two steps.
    ("training", "open"): ".tfdist-run",
    ("training", "write"): "metrics.jsonl",
    **{("save", call): "checkpoints/step-00000016" for call in CALLS},
    **{("evaluation", call): "checkpoints/best.json" for call in CALLS},
    **{("end", call): "finished.json" for call in CALLS},
}
# On one worker, on two, and on two of which one is killed meanwhile.
WORKERS = ("1", "2", "2, one killed")
# At the end, where that file is read once more, the other worker has finished: it is not lost.
AT_END = {("training", "open"), *(("end", call) for call in CALLS)}
ROWS = [(*row, workers) for workers in WORKERS for row in PHASES if row not in AT_END or workers != WORKERS[-1]]
QUICK = [("save", "write", "1")]


@pytest.mark.parametrize(("phase", "call", "workers"), slow_except(ROWS, QUICK))
def test_a_run_whose_workdir_hangs_ends(tmp_path, phase, call, workers):
    """It waited without a limit, and named neither the workdir nor a worker that was lost."""
    workdir = tmp_path / "run"
    disk = hung.Disk(tmp_path, workdir / PHASES[phase, call])
    # A save waits half a minute for the one before. A worker that has no more steps has finished, and is not lost.
    steps = f"--config.train.steps={96 if phase == 'training' else 26 if 'killed' in workers else 16}"
    command = topologies.command(workdir, *LIMITS, steps, "--config.evaluation.every.steps=16", config=CONFIG)
    environments = [disk.environment(one) for one in topologies.environments(int(workers[0]))]
    if phase != "training":
        disk.hang(call)
    commands = [command] * len(environments)
    with started(commands, environments, popen=subprocess.Popen) as processes:
        if phase == "training":
            hung.until(lambda: topologies.saved_steps(workdir))
            disk.hang(call)
        disk.until_it_hangs()
        before = topologies.saved_steps(workdir)
        if "killed" in workers:
            processes.pop().send_signal(signal.SIGKILL)
        outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [interruption.EXIT_PEER_LOST] * len(codes), outputs
    for output in outputs:
        if "killed" in workers:
            assert "worker 1 (host" in output and "is lost" in output, output
        else:
            assert f" has waited for {workdir}" in output and "stall_seconds" in output, output
    # Training may go on, and its newest two are kept.
    assert max(before, default=0) <= max(topologies.saved_steps(workdir), default=0)
    for path in workdir.glob("checkpoints/step-????????"):
        checkpoint_format.verify(path)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
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
