"""Promise 2: the same run through any interruption, on real worker processes."""

import dataclasses
import hashlib
import json
import pathlib
import random
import re
import runpy
import shutil
import signal
import socket
import time

import keras
import pytest
import topologies
from launching import REPOSITORY, run_all
from parameters import slow
from processes import at_once, run, started, until

from tfdist import config as c
from tfdist.checkpoint import directory, workdir_lock
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption, slurm_requeue
from tfdist.report import read_back
from tfdist.tools.many_runs import run_state
from tfdist.training import checkpointing, loop, opening, setup
from tfdist.training import run as run_lib
from tfdist.training.evaluation import saved_checkpoint

CONFIG = "tests/configs/interrupted.py"
STEPS = 96
QUICKLY = "--config.objective.seconds=0.0"
# The limit in seconds for noticing a lost peer and for answering a signal.
PATIENCE = 60.0
pytestmark = pytest.mark.usefixtures("own_process")
KILL, TERM, INT, USR1 = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


def interrupt(command: list[str], workdir: pathlib.Path, workers: int, number: int, victim: int) -> list[str]:
    """Sends a signal to one worker at a random instant after a new checkpoint; returns the others' outputs.

    All must end soon, with the exit code that says why.
    """
    old = set(topologies.saved_steps(workdir))
    with started([command] * workers, topologies.environments(workers)) as processes:
        deadline = time.monotonic() + 120
        while not set(topologies.saved_steps(workdir)) - old:
            assert all(process.poll() is None for process in processes), processes[victim].communicate()[0].decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 0.4))
        assert processes[victim].poll() is None, "the run was over before it was interrupted"
        processes[victim].send_signal(number)
        start = time.monotonic()
        outputs = [process.communicate(timeout=PATIENCE + 30)[0].decode() for process in processes]
        seconds = time.monotonic() - start
    codes = [process.returncode for process in processes]
    said = "\n".join(outputs)
    if number == KILL:
        assert codes.pop(victim) == -KILL
        assert codes == [interruption.EXIT_PEER_LOST] * (workers - 1), said
        for rank, output in enumerate(outputs):
            host = r"\(host \S+, pid " + str(processes[victim].pid)
            words = rf"tfdist: worker {rank}: worker {victim} {host}\) is lost: .* Restart all workers\n"
            assert rank == victim or len(re.findall(words, output)) == 1, output
    else:
        assert codes == [interruption.EXIT_STOPPED] * workers, said
        who = signal.Signals(number).name if victim == 0 else "another worker"
        assert f"stopped by {who} and saved" in outputs[0]
        # Saved where it stopped, and not before.
        newest = checkpoint_format.newest_valid(workdir / "checkpoints", pytest.fail)
        assert newest.step == topologies.saved_steps(workdir)[-1]
    assert seconds < PATIENCE, f"{seconds} s\n{said}"
    assert not (workdir / checkpointing.FINISHED).exists()
    assert run_state.read(workdir)["state"] == ("lost" if number == KILL else "stopped")
    return outputs


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """workers -> the workdir of a run that nothing has interrupted."""
    workdirs: dict[int, pathlib.Path] = {}

    def get(workers: int) -> pathlib.Path:
        if workers not in workdirs:
            workdirs[workers] = tmp_path_factory.mktemp(f"uninterrupted{workers}")
            topologies.train(workdirs[workers], QUICKLY, workers=workers, config=CONFIG)
        return workdirs[workers]

    return get


def reported(workdir: pathlib.Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"]) for line in lines if line["kind"] in ("train", "evaluation")]


def assert_same_run(whole: pathlib.Path, resumed: pathlib.Path) -> None:
    """Asserts that the runs have the same weights, slots and statistics to the bit, and the same records."""
    topologies.assert_same_bits(*(topologies.arrays(workdir, STEPS) for workdir in (whole, resumed)))
    # In its order, and nothing twice.
    assert reported(whole) == reported(resumed)
    for kind in ("train", "evaluation"):
        for ours, theirs in zip(*(topologies.records(w, kind) for w in (whole, resumed)), strict=True):
            for key in ("loss", "accuracy", *(["learning_rate"] if kind == "train" else ["best"])):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-12), (ours, theirs)
    assert directory.read_best(whole / "checkpoints") == directory.read_best(resumed / "checkpoints")
    assert topologies.saved_steps(whole) == topologies.saved_steps(resumed)


@pytest.mark.parametrize(
    ("workers", "interruptions"),
    [
        (2, [(KILL, 0)]),
        slow(1, [(KILL, 0), (TERM, 0), (INT, 0)]),
        slow(2, [(KILL, 1), (USR1, 1), (KILL, 0)]),
    ],
)
def test_an_interrupted_run_is_the_uninterrupted_one_to_the_bit(uninterrupted, tmp_path, workers, interruptions):
    command = topologies.command(tmp_path, config=CONFIG)

    def interrupted() -> list[str]:
        for number, victim in interruptions:
            interrupt(command, tmp_path, workers, number, victim)
        return run_all([command] * workers, topologies.environments(workers))

    outputs, _ = at_once(interrupted, lambda: uninterrupted(workers))
    assert "resumed from" in outputs[0] and f"finished after step {STEPS}" in outputs[0]
    assert_same_run(uninterrupted(workers), tmp_path)
    # A chief that is killed cannot say how its start has ended.
    ends = ["stopped" if number != KILL else "" if victim == 0 else "lost" for number, victim in interruptions]
    assert [start["end"] for start in read_back.read_starts(tmp_path)] == [*ends, "finished"]


def content(workdir: pathlib.Path) -> dict[str, tuple[int, str]]:
    """The moment and the digest of every file."""
    return {
        str(path.relative_to(workdir)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(workdir.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_finished_run_changes_nothing_and_prints_that_it_is_finished(uninterrupted, workers):
    workdir = uninterrupted(workers)
    before = content(workdir)
    assert {"finished.json", "config.json", "environment.json", "metrics.jsonl"} < before.keys()
    command = topologies.command(workdir, QUICKLY, config=CONFIG)
    outputs = run_all([command] * workers, topologies.environments(workers))
    assert "This run is finished; nothing to do." in outputs[0] and f"Step {STEPS}" in outputs[0]
    assert "finished" not in "".join(outputs[1:])
    assert content(workdir) == before


def in_process(workdir: pathlib.Path, change=lambda config: None) -> run_lib.Run:
    """Opens the run in this process; `change` edits its config."""
    keras.utils.clear_session()
    config = runpy.run_path(str(REPOSITORY / CONFIG))["get_config"]()
    config.objective["seconds"] = 0.0
    change(config)
    return setup.build_run(config, workdir)


def linear_for(epochs: int, **rate):
    """Changes the config to a quick model, trained for `epochs`; `rate`: fields of the learning rate."""

    def change(config: c.Config) -> None:
        config.model = {"target": "tests.support.lab:linear"}
        config.objective = {"target": "tfdist.zoo.objectives:classification"}
        config.train, config.learning_rate = c.Train(epochs=epochs), c.LearningRate(**{"peak": 1e-3} | rate)

    return change


@pytest.mark.slow
def test_a_run_with_a_shortened_warmup_continues_as_the_longer_run_to_the_bit(tmp_path, capsys):
    def epochs(number):
        return linear_for(number, warmup_epochs=2, schedule={"target": "tfdist.zoo.schedules:cosine"})

    whole, continued = tmp_path / "whole", tmp_path / "continued"
    assert loop.train(in_process(whole, epochs(3))) == 0
    assert "shortened" not in capsys.readouterr().err
    assert loop.train(in_process(continued, epochs(1))) == 0
    assert "the warm-up is shortened from 60 steps to the 30 of the run" in capsys.readouterr().err
    assert loop.train(in_process(continued, epochs(3)), allow_config_changes=True) == 0
    said = capsys.readouterr()
    assert re.search(r"changed: config\.train\.epochs: 1 was saved, now 3", said.out) and "shortened" not in said.err
    assert json.loads((continued / "config.json").read_text())["train"]["epochs"] == 3
    last = topologies.saved_steps(whole)[-1]
    topologies.assert_same_bits(*(topologies.arrays(workdir, last) for workdir in (whole, continued)))


def test_any_checkpoint_can_be_evaluated_and_nothing_changes(uninterrupted, capsys):
    """On one worker; two have trained."""
    workdir = uninterrupted(2)
    before = content(workdir)
    run = in_process(workdir)
    best = json.loads((workdir / "checkpoints" / "best.json").read_text())
    steps = topologies.saved_steps(workdir)
    assert steps[-1] == STEPS and best["step"] in steps and len(steps) in (2, 3)
    evaluated = {line["step"]: line for line in topologies.records(workdir, "evaluation")}
    for which, step in (("newest", STEPS), ("best", best["step"]), (str(steps[0]), steps[0])):
        assert saved_checkpoint.evaluate_only(run, which) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (result["step"], result["num_examples"]) == (step, 355)
        if step in evaluated:
            assert result["accuracy"] == evaluated[step]["accuracy"]
            assert result["loss"] == pytest.approx(evaluated[step]["loss"], rel=1e-12)
    assert best["value"] == max(line["accuracy"] for line in evaluated.values())
    with pytest.raises(ValueError, match=r'"newest", "best" or a saved step \(96, .*\)\. Received: \'50\''):
        saved_checkpoint.evaluate_only(run, "50")
    assert content(workdir) == before


@pytest.mark.slow
def test_another_best_metric_starts_the_search_anew(tmp_path):
    """The lowest loss was compared with accuracies, and was "the best accuracy" for good."""

    def trained(epochs, metric, mode):
        def change(config):
            linear_for(epochs)(config)
            config.evaluation.every = c.Every(epochs=1)
            config.checkpoint.best_metric, config.checkpoint.best_mode = metric, mode

        assert loop.train(in_process(tmp_path, change), allow_config_changes=True) == 0
        return json.loads((tmp_path / "finished.json").read_text())

    assert trained(1, "loss", "min")["best_loss"] > 1.0
    assert trained(2, None, "min") == {"step": 60}
    finished = trained(3, "accuracy", "max")
    accuracy = topologies.records(tmp_path, "evaluation")[-1]["accuracy"]
    assert finished == {"step": 90, "best_accuracy": accuracy} and accuracy < 1.0
    best = directory.read_best(tmp_path / "checkpoints")
    assert best == {"step": 90, "metric": "accuracy", "value": accuracy}


def assert_only_the_second_step_is_progress(services, state) -> None:
    """A job that is too short makes one step a start."""
    for progress in (False, True):
        state.step += 1
        checkpointing.save(services, state)
        checkpointing.wait_until_saved(services, state)
        assert slurm_requeue.progressed() is progress


@pytest.mark.slow
def test_after_a_damaged_newest_checkpoint_only_a_new_one_is_progress(uninterrupted, tmp_path, monkeypatch, capsys):
    """A job that dies before its first checkpoint was requeued for ever: the damaged one was newer than the start."""
    workdir = topologies.cut_back(uninterrupted(1), tmp_path / "run")
    newest = workdir / "checkpoints" / f"step-{STEPS:08d}"
    (newest / "arrays.npz").write_bytes((newest / "arrays.npz").read_bytes()[:-1])

    def with_requeue(config: c.Config) -> None:
        config.cluster.requeue = True

    monkeypatch.setattr(slurm_requeue, "_policy", None)  # Until the end of this test.
    run = in_process(workdir, with_requeue)
    services, state = opening.open_run(run)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", str(tmp_path))  # There is no scontrol.
    slurm_requeue.requeue()
    assert state.step < STEPS and "this attempt saved no new checkpoint" in capsys.readouterr().err
    assert_only_the_second_step_is_progress(services, state)
    slurm_requeue.requeue()
    assert "job not requeued: scontrol not found" in capsys.readouterr().err
    checkpointing.close(services)


def test_a_single_step_is_no_progress_of_a_job(tmp_path, monkeypatch):
    """It was requeued for ever."""

    def change(config: c.Config) -> None:
        linear_for(1)(config)
        config.cluster.requeue = True

    monkeypatch.setattr(slurm_requeue, "_policy", None)  # Until the end of this test.
    services, state = opening.open_run(in_process(tmp_path / "run", change))
    assert_only_the_second_step_is_progress(services, state)
    checkpointing.close(services)


@pytest.mark.slow
def test_an_evaluation_without_a_finite_loss_is_still_json(tmp_path, capsys):
    workdir = tmp_path / "run"
    run = in_process(workdir, linear_for(1))
    assert loop.train(run) == 0
    kernel = next(variable for variable in run.context.model.variables if variable.name == "kernel")
    path = checkpoint_format.find(run.checkpoints, "newest", print).path
    arrays = topologies.arrays(workdir, topologies.saved_steps(workdir)[-1])
    arrays[f"model/{kernel.path}"][:] = 3e38  # Weights that are not finite are refused; their products are not finite.
    checkpoint_format.write(path.parent, 999, arrays, {})
    capsys.readouterr()
    assert saved_checkpoint.evaluate_only(run, "999") == 0

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    printed = json.loads(capsys.readouterr().out.splitlines()[-1], parse_constant=refuse)
    assert printed["step"] == 999 and printed["loss"] is None


@pytest.mark.slow
def test_a_changed_config_is_refused_by_field_and_accepted_where_allowed(uninterrupted, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted(1), workdir)

    def change(config: c.Config) -> None:
        config.learning_rate.peak = 1e-3
        config.train.steps = 100
        config.optimizer["beta_1"] = 0.8
        config.checkpoint.keep = 5  # Does not change what the run arrives at.

    before = content(workdir)
    run = in_process(workdir, change)
    with pytest.raises(ValueError) as raised:
        loop.train(run)
    assert str(raised.value).splitlines() == [
        f"{workdir} contains a run with a different config:",
        "  config.learning_rate.peak: 0.002 was saved, now 0.001",
        "  config.train.steps: 96 was saved, now 100",
        "  config.optimizer.beta_1: '(absent)' was not set, now 0.8",
        "Choose another --workdir, or continue with the new values: --allow_config_changes.",
    ]
    assert content(workdir) == before
    assert loop.train(run, allow_config_changes=True) == 0
    assert "finished after step 100" in capsys.readouterr().out
    assert topologies.saved_steps(workdir)[-1] == 100
    assert json.loads((workdir / "config.json").read_text())["learning_rate"]["peak"] == 1e-3
    assert reported(workdir)[-2:] == [("train", 100), ("evaluation", 100)]
    # Its config is now the new one.
    assert loop.train(run) == 0


def test_a_run_killed_on_another_machine_resumes_before_its_damaged_newest_checkpoint(
    uninterrupted, tmp_path, capsys, monkeypatch
):
    """Also after a reboot, and in a new container: this machine cannot know whether the process still runs.

    Each start leaves a record of its environment: a run that was resumed so kept no trace of the first machine.
    """
    monkeypatch.setattr(socket, "gethostname", lambda: "n2")
    workdir = topologies.cut_back(uninterrupted(1), tmp_path / "run")
    newest = workdir / "checkpoints" / f"step-{STEPS:08d}"
    (newest / "arrays.npz").write_bytes((newest / "arrays.npz").read_bytes()[:-1])
    run = in_process(workdir)
    assert saved_checkpoint.evaluate_only(run, "newest") == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["step"] == topologies.saved_steps(workdir)[-2]
    assert f"skipped a damaged checkpoint: {newest}/arrays.npz has" in said.err
    owner = workdir_lock.Owner(host="n7", pid=7, machine="boot id", start="9", heartbeat_seconds=0.5, nonce="abc")
    (workdir / workdir_lock.LOCK).write_text(json.dumps(dataclasses.asdict(owner)))
    assert run.config.cluster.connect_seconds is None
    assert loop.train(run) == 0
    said = capsys.readouterr()
    assert f"skipped a damaged checkpoint: {newest}/arrays.npz has" in said.err
    assert f"took over {workdir} from a run that no longer exists: host n7, process 7" in said.err
    assert "resumed from" in said.out
    assert_same_run(uninterrupted(1), workdir)
    first, second = topologies.records(workdir, "environment")
    assert first == topologies.records(uninterrupted(1), "environment")[0]
    assert first["host"] != second["host"] == "n2"
    last = json.loads((workdir / "environment.json").read_text())
    names = ("host", "versions", "command", "git", "gpu")
    assert {name: last[name] for name in names} == {name: second[name] for name in names}


def test_an_evaluation_that_is_interrupted_is_made_once_more_and_reported_once(uninterrupted, tmp_path):
    workdir = topologies.cut_back(uninterrupted(1), tmp_path / "run")
    # As a stop in the middle of the last evaluation leaves it: saved, and not evaluated.
    last = workdir / "checkpoints" / f"step-{STEPS:08d}"
    state = checkpoint_format.verify(last).state | {"evaluated": 91}
    checkpoint_format.write(workdir / "checkpoints", STEPS, topologies.arrays(workdir, STEPS), state)
    for _ in range(2):  # A resumed run evaluates; killed before its next checkpoint, it does so again.
        assert loop.train(in_process(workdir)) == 0
        assert reported(workdir) == reported(uninterrupted(1))
        (workdir / "finished.json").unlink()


def test_the_best_is_marked_though_the_run_was_killed_before_it_could_be(uninterrupted, tmp_path):
    best = directory.read_best(uninterrupted(1) / "checkpoints")
    workdir = topologies.cut_back(uninterrupted(1), tmp_path / "run", newest=best["step"])
    (workdir / "checkpoints" / "best.json").unlink()
    opened, _ = opening.open_run(in_process(workdir))  # No more: nothing better shall be found.
    checkpointing.close(opened)
    assert directory.read_best(workdir / "checkpoints") == best


@pytest.mark.slow
def test_a_second_start_in_a_live_workdir_is_refused_and_changes_nothing(tmp_path):
    """The first run continues; an evaluation may read meanwhile; after a kill -9 the next start takes over."""
    # 48 s of training: time for the second start on a slow machine.
    command = topologies.command(tmp_path, "--config.objective.seconds=0.5", config=CONFIG)
    with started([command], topologies.environments(1)) as (killed,):
        until(lambda: topologies.saved_steps(tmp_path), shown=lambda: killed.communicate()[0].decode())
        killed.kill()
    with started([command], topologies.environments(1)) as (first,):
        until(lambda: max(topologies.saved_steps(tmp_path)) > 8, shown=lambda: first.communicate()[0].decode())
        beside = [command, [*command, "--mode=eval"]]
        codes, (refused, evaluated) = run(beside, [topologies.environments(1)[0]] * 2)
        steps = topologies.saved_steps(tmp_path)
        until(lambda: max(topologies.saved_steps(tmp_path)) > max(steps))
        first.terminate()
        output = first.communicate(timeout=300)[0].decode()
    assert first.returncode == interruption.EXIT_STOPPED, output
    assert f"took over {tmp_path} from a run that no longer exists: host " in output
    made = "image float32 [48, 8, 8, 1], label int64 [48]"
    assert "config.data.prepare: tfdist.zoo.prepare:image(scale=0.0625, pad=1)" in output
    assert f"  returns per replica {made}\n" in output
    assert codes == [1, 0], refused + evaluated
    assert f"tfdist: {tmp_path} is in use by another run: host " in refused and f"process {first.pid}" in refused
    assert json.loads(evaluated.splitlines()[-1])["num_examples"] == 355
    reports = [line["step"] for line in topologies.records(tmp_path, "train")]
    assert reports == [*range(5, reports[-1] + 1, 5)]
    assert not list(tmp_path.glob("checkpoints/*.damaged")) and not list(tmp_path.glob(".tfdist-run*"))
