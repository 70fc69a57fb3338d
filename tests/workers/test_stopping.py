"""A stop signal to one worker, in each phase of a run: all leave together, saved, with the documented exit code."""

import contextlib
import json
import math
import os
import re
import signal
import sys
import time

import processes
import pytest
import topologies
from parameters import slow, slow_except

from tfdist.checkpoint import workdir_lock
from tfdist.cluster import interruption
from tfdist.cluster.discovery import slurm_job

STOPPED = interruption.EXIT_STOPPED
STEPS = 32
OPTIONS = [f"--config.train.steps={STEPS}", "--config.objective.seconds=0.0", "--config.checkpoint.export=true"]
# Runs tfdist.main, and sends this process a signal as it enters or leaves a function: module:name:when:number, where
# module is one of tfdist and name may be Class.method.
WORKER = """
import functools, importlib, os, runpy, sys
from tfdist.cluster import interruption
for hit in sys.argv.pop(1).split():
    module, name, when, number = hit.split(":")
    with interruption.block_signals():
        module = importlib.import_module(f"tfdist.{module}")
    *owners, name = name.split(".")
    owner = functools.reduce(getattr, owners, module)
    def wrapped(*args, function=getattr(owner, name), when=when, number=int(number), **kwargs):
        if when == "before":
            os.kill(os.getpid(), number)
        result = function(*args, **kwargs)
        if when == "after":
            os.kill(os.getpid(), number)
        return result
    setattr(owner, name, wrapped)
runpy.run_module("tfdist.main", run_name="__main__", alter_sys=True)
"""
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


def run_hit(workdir, hits: dict[int, str]) -> tuple[list[int], list[str]]:
    """Runs two workers that send themselves signals; `hits`: rank -> when (see `WORKER`)."""
    line = topologies.command(workdir, *OPTIONS, config="tests/configs/interrupted.py")[3:]
    commands = [[sys.executable, "-c", WORKER, hits.get(rank, ""), *line] for rank in range(2)]
    return processes.run(commands, topologies.environments(2), timeout=600)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """One run, which each test interrupts once more."""
    return tmp_path_factory.mktemp("run")


# The worker that is signalled, when, and what the chief says.
MOMENTS = {
    # While TensorFlow is imported, before the other workers are met.
    "meeting": (1, f"cluster.process_exit:import_tensorflow_quietly:before:{USR1:d}", "before training started"),
    # While the strategy is made: TensorFlow's own handler, which swallows SIGTERM, is in place by then.
    "creating the strategy": (
        *(1, f"cluster.several_workers.multi_worker:_make_strategy:after:{TERM:d}"),
        "stopped by another worker before the first step",
    ),
    # While the first step is compiled.
    "compiling": (1, f"training.step.train_step:add_to_totals:before:{TERM:d}", "stopped by another worker and saved"),
    "evaluating": (0, f"training.step.train_step:evaluation_step:before:{INT:d}", "stopped by SIGINT and saved"),
    # While a checkpoint is written, and again while the one is written to which that led.
    "saving": (0, f"checkpoint.format:write:before:{INT:d}", "stopped by SIGINT and saved"),
    # While the chief reads the checkpoint, which may take minutes.
    "restoring": (0, f"checkpoint.format:verify:before:{TERM:d}", "stopped by SIGTERM before the first step"),
}


@pytest.mark.parametrize("moment", slow_except(MOMENTS, ["meeting"]))
def test_a_signal_to_one_worker_ends_all_with_the_code_for_stopped(workdir, moment):
    rank, hit, words = MOMENTS[moment]
    codes, outputs = run_hit(workdir, {rank: hit})
    assert codes == [STOPPED, STOPPED], "\n".join(outputs)
    assert words in outputs[0], outputs[0]
    assert moment != "restoring" or "resumed from" not in outputs[0], outputs[0]
    assert "Traceback" not in "".join(outputs)
    assert not (workdir / "finished.json").exists()


@pytest.mark.slow
def test_a_run_with_a_signal_after_the_last_step_finishes_unchanged(workdir, tmp_path):
    hits = {0: f"checkpoint.export:export:before:{TERM:d}", 1: f"cluster.cluster:Cluster.leave:before:{TERM:d}"}
    codes, outputs = run_hit(workdir, hits)
    assert codes == [0, 0], "\n".join(outputs)
    assert json.loads((workdir / "finished.json").read_text())["step"] == STEPS
    assert run_hit(tmp_path, {})[0] == [0, 0]
    topologies.assert_same_bits(*(topologies.arrays(path, STEPS) for path in (workdir, tmp_path)))


@contextlib.contextmanager
def hanging(workdir, *options):
    """Starts one worker whose first step never ends; yields its process and what it has printed."""
    options = ["--config.objective={'target': 'tests.support.lab:hanging'}", *options]
    command = topologies.command(workdir, *options, config="tests/configs/interrupted.py")
    with processes.started([command], topologies.environments(1), text=True) as (process,):
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line == "hangs\n":
                break
        yield process, printed


@pytest.mark.parametrize(("number", "code", "pause"), [(INT, 130, 0.0), slow(TERM, 128 + TERM, 5.5)])
def test_a_second_signal_ends_one_worker_that_hangs(tmp_path, number, code, pause):
    """Python runs no signal handler in a call that hangs: only SIGKILL ended the process."""
    with hanging(tmp_path) as (process, printed):
        process.send_signal(number)
        time.sleep(0.5)
        if number == TERM:  # The same request, sent twice.
            process.send_signal(number)
        time.sleep(1.0 + pause)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == code, said
    assert said.endswith("tfdist: interrupted before the run was saved\n"), [*printed, said]


@pytest.mark.slow
def test_one_worker_that_hangs_ends_with_its_stacks(tmp_path):
    """It hung for ever, without a word."""
    with hanging(tmp_path, "--config.cluster.first_stall_seconds=2") as (process, printed):
        # On a slow machine, the two seconds end while the step is compiled.
        said = "".join(printed) + process.communicate(timeout=60)[0]
    assert process.returncode == interruption.EXIT_PEER_LOST, said
    line = r"tfdist: worker 0 \(host .*\) .* for \d+\.\d s, in an execution, .* Run the same command to resume\n$"
    assert re.search(line, said) and ", in wait\n" in re.sub(r'File ".*", line \d+ ', ", ", said), said


def test_the_end_of_the_job_is_slurms():
    assert slurm_job.end_time({"SLURM_JOB_END_TIME": "1030"}) == 1030.0
    assert slurm_job.end_time({"SLURM_JOB_END_TIME": "Unknown"}) == slurm_job.end_time({}) == math.inf


def test_a_run_stops_before_its_time_limit(monkeypatch):
    # Five seconds to leave, two calls, and a save that takes twice as long as the slowest so far.
    needed, wall, seconds = 5 + 2 * 2 + 2 * 4, time.time(), time.monotonic()
    monkeypatch.setattr(interruption.time, "time", lambda: wall)
    monkeypatch.setattr(interruption.time, "monotonic", lambda: seconds)
    for end, now in (("end", seconds), ("job_end", wall)):
        stop = interruption.StopRequest(execution_seconds=2.0, save_seconds=lambda: 4.0)
        assert not stop.poll()  # Nothing sets an end to its time.
        setattr(stop, end, now + needed + 0.1)
        assert not stop.poll() and stop.reason is None
        setattr(stop, end, now + needed - 0.1)
        assert stop.poll() and stop.reason == "the time limit"


EXITS = """
import sys, keras

class Exits(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        sys.exit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_callback_that_exits_is_named_by_all_workers(tmp_path, monkeypatch, workers):
    """The chief ended with 0 and without a word, and the others lost "another worker"."""
    (tmp_path / "exits.py").write_text(EXITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    options = ("--config.callbacks=[{'target': 'exits:Exits'}]", "--config.train.steps=40")
    command = topologies.command(tmp_path / "run", *options)
    codes, outputs = processes.run([command] * workers, topologies.environments(workers))
    assert codes == [1] * workers, outputs
    for output in outputs:
        assert re.search(r"sys\.exit\(\) was called at .*exits\.py, line \d+, `sys\.exit\(\)`: it ends", output), output


def test_a_signal_ends_the_wait_for_the_last_attempt_of_the_job(tmp_path):
    lock = workdir_lock.acquire(tmp_path, job="7", heartbeat_seconds=1.0, wait_seconds=1.0, lost=print, log=print)
    command = topologies.command(tmp_path, config="tests/configs/interrupted.py")
    with processes.started([command], topologies.environments(1, SLURM_JOB_ID="7")) as (process,):
        said = [process.stdout.readline().decode()]
        while said[-1] and "waiting for the run that holds" not in said[-1]:
            said.append(process.stdout.readline().decode())
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0].decode()
    lock.release()
    assert process.returncode == STOPPED and "stopped by SIGTERM" in output, (said, output)


def test_a_time_limit_that_leaves_no_time_for_a_step_saves_none(tmp_path):
    """Each start made one step, and a job that requeues itself did so for ever."""
    limit = "--config.cluster.time_limit_seconds=5"
    command = topologies.command(tmp_path, limit, config="tests/configs/interrupted.py")
    ((code,), (output,)) = processes.run([command], topologies.environments(1))
    assert code == STOPPED and "stopped by the time limit" in output, output
    assert not list(tmp_path.glob("checkpoints/*"))
