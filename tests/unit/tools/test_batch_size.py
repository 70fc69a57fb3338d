"""The search for the largest batch that fits: its order, its trials in processes of their own, and their verdicts."""

import csv
import json
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment

from tfdist.tools import batch_size, batch_size_trial, measure


def run(*options, code=0):
    """Runs the command, asserts its exit code, and returns its output."""
    command = [sys.executable, "-m", "tfdist", "batch_size", "--config=configs/digits.py", *options]
    done = forked.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("smallest", [1, 3, 8, 50])
def test_the_search_finds_the_largest_that_fits_and_asks_for_none_twice(smallest):
    for most in range(70):
        for multiple_of in (1, 8):
            asked = []

            def fits(batch, asked=asked, most=most):
                asked.append(batch)
                return batch <= most

            found = batch_size.search(fits, smallest=smallest, largest=64, multiple_of=multiple_of)
            assert found == (min(most, 64) // multiple_of * multiple_of or None)
            assert len(set(asked)) == len(asked) <= 14 and all(batch % multiple_of == 0 for batch in asked)


@pytest.mark.workers
def test_the_largest_batch_is_found_by_trials_in_processes_of_their_own(tmp_path):
    options = ["--smallest=32", "--multiple_of=16", "--config.cluster.logical_devices=2", f"--workdir={tmp_path}"]
    options.append("--config.callbacks=[{'target': 'keras.callbacks:EarlyStopping', 'monitor': 'val_loss'}]")
    found = run(*options, "--config.data.train_split=train[:40]")
    with (tmp_path / "batch_size.csv").open(newline="") as file:
        rows = {int(row["batch_per_replica"]): row for row in csv.DictReader(file)}
    # 40 examples are 20 for each of two replicas.
    assert {batch: row["result"] for batch, row in rows.items()} == {
        16: batch_size_trial.FITS,
        32: batch_size_trial.TOO_FEW,
    }
    assert float(rows[16]["memory_mb_per_replica"]) > 100 and float(rows[16]["step_ms"]) > 0
    assert found.rstrip().endswith("16 per replica, 32 over 2 replica(s): --config.data.batch_size=32")


@pytest.mark.workers
def test_a_trial_that_takes_more_than_its_share_ends_alone(tmp_path):
    batch_size_trial.clear(tmp_path / "batch-8")
    found = run("--trial=8", f"--workdir={tmp_path / 'batch-8'}", "--memory_mb=150", code=137)
    assert batch_size_trial.combine(tmp_path / "batch-8", 137)["result"] == batch_size_trial.OUT_OF_MEMORY, found


@pytest.mark.workers
def test_what_fails_of_something_else_is_shown(tmp_path):
    runner = batch_size.TrialRunner(arguments=["--config=nowhere.py"], backend="devices", workdir=tmp_path)
    with pytest.raises(ValueError, match=r"(?s)The trial of batch 16 exited with code 1; .*there is no file .*nowhere"):
        runner.fits(16)


def test_what_the_workers_of_a_trial_say_is_put_together(tmp_path):
    def say(*found):
        batch_size_trial.clear(tmp_path)
        for rank, one in enumerate(found):
            (tmp_path / f"worker-{rank}.json").write_text(json.dumps(one))

    fits = {"result": batch_size_trial.FITS, "replicas": 2, "step_ms": 1.0}
    say(fits | {"memory_mb": 5.0}, fits | {"memory_mb": 7.0})
    assert batch_size_trial.combine(tmp_path, 0) == fits | {"memory_mb": 7.0}
    say(fits | {"memory_mb": 5.0}, {"result": batch_size_trial.OUT_OF_MEMORY, "replicas": 2})
    assert batch_size_trial.combine(tmp_path, 76)["result"] == batch_size_trial.OUT_OF_MEMORY
    say()
    assert batch_size_trial.combine(tmp_path, -9)["result"] == batch_size_trial.OUT_OF_MEMORY
    assert batch_size_trial.combine(tmp_path, 1) is None
    assert measure.free_bytes() > 0


@pytest.mark.parametrize("maximum, left", [("max", None), ("5000", 3000), ("1000", 0)])
def test_a_control_group_limits_what_is_free(tmp_path, monkeypatch, maximum, left):
    (tmp_path / "memory.max").write_text(maximum)
    (tmp_path / "memory.current").write_text("2000")
    unlimited = measure.free_bytes(tmp_path / "none")
    found = measure.free_bytes(tmp_path)
    assert found == left if left is not None else abs(found - unlimited) < 2**31
