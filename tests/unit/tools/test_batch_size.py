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
def test_search_finds_the_largest_batch_and_tries_none_twice(smallest):
    for most in range(70):
        for multiple_of, powers in ((1, False), (8, False), (1, True), (8, True)):
            asked = []

            def attempt(batch, asked=asked, most=most):
                asked.append(batch)
                result = batch_size_trial.FITS if batch <= most else batch_size_trial.OUT_OF_MEMORY
                return batch_size.Trial(result=result, largest=100)

            options = {"smallest": smallest, "largest": 64, "multiple_of": multiple_of, "powers_of_two": powers}
            found = batch_size.search(attempt, **options)
            possible = [
                n for n in range(multiple_of, min(most, 64) + 1, multiple_of) if not powers or n.bit_count() == 1
            ]
            assert found == max(possible, default=None), (asked, options)
            assert len(set(asked)) == len(asked) <= 14 and all(batch % multiple_of == 0 for batch in asked)


@pytest.mark.parametrize(
    ("group", "examples", "options", "asked", "best"),
    [
        # Refused until the group divides the batch; no batch is larger than the number of examples.
        (16, 1442, {"smallest": 8}, [8, 16, 32, 64, 128, 256, 512, 1024, 1440], 1440),
        (16, 1442, {"smallest": 8, "powers_of_two": True}, [8, 16, 32, 64, 128, 256, 512, 1024], 1024),
        # One that is refused after a smaller one fits is not too large.
        (16, 1442, {"smallest": 16}, [16, 32, 64, 128, 256, 512, 1024, 1442, 1440], 1440),
        (16, 1442, {"smallest": 2048}, [2048, 1024, 1442, 1440], 1440),
        (16, 100, {"smallest": 48}, [48, 96, 100], 96),
        (1, 40, {"smallest": 64, "multiple_of": 8}, [64, 32, 40], 40),
        (1, 40, {"smallest": 64, "powers_of_two": True}, [64, 32], 32),
        (1, 40, {"smallest": 8, "multiple_of": 48}, [48], None),
        (1, 40, {"smallest": 8, "largest": 4, "multiple_of": 8}, [], None),
    ],
)
def test_search_doubles_refused_batches_up_to_the_number_of_examples(group, examples, options, asked, best):
    batches = []

    def attempt(batch):
        batches.append(batch)
        refused = batch_size.Trial(result=batch_size_trial.REFUSED, largest=examples, reason=f"{batch} % {group}")
        result = batch_size_trial.FITS if batch <= examples else batch_size_trial.TOO_FEW
        return refused if batch % group else batch_size.Trial(result=result, largest=examples)

    assert batch_size.search(attempt, **{"largest": 1 << 20} | options) == best and batches == asked


def test_search_stops_when_two_batches_are_refused_for_one_reason():
    batches = []

    def attempt(batch):
        batches.append(batch)
        return batch_size.Trial(result=batch_size_trial.REFUSED, reason="num_classes=12")

    with pytest.raises(ValueError, match="num_classes=12"):
        batch_size.search(attempt, smallest=8, largest=1 << 20)
    assert batches == [8, 16]


@pytest.mark.slow
def test_batch_size_runs_each_trial_in_its_own_process(tmp_path):
    options = ["--smallest=8", "--powers_of_two", "--config.cluster.logical_devices=2", f"--workdir={tmp_path}"]
    options += ["--config.model.group_size=32"]
    options.append("--config.callbacks=[{'target': 'keras.callbacks:EarlyStopping', 'monitor': 'val_loss'}]")
    found = run(*options, "--config.data.train_split=train[:40]")
    with (tmp_path / "batch_size.csv").open(newline="") as file:
        rows = {int(row["batch_per_replica"]): row for row in csv.DictReader(file)}
    # Groups of 32 examples are normalised together; 40 examples are 20 for each of two replicas.
    assert {batch: row["result"] for batch, row in rows.items()} == {
        8: batch_size_trial.REFUSED,
        16: batch_size_trial.FITS,
    }
    assert float(rows[16]["memory_mb_per_replica"]) > 100 and float(rows[16]["step_ms"]) > 0
    last, limit = found.splitlines()[-2:]
    assert last.endswith("16 per replica, 32 over 2 replica(s): --config.data.batch_size=32")
    assert limit == "Memory was not the limit: the number of examples ended the search."


@pytest.mark.workers
def test_trial_over_its_memory_limit_ends_only_itself(tmp_path):
    found = run("--trial=8", f"--workdir={tmp_path / 'batch-8'}", "--memory_mb=150", code=137)
    assert batch_size_trial.combine(tmp_path / "batch-8", 137)["result"] == batch_size_trial.OUT_OF_MEMORY, found


@pytest.mark.workers
def test_batch_size_shows_the_log_when_a_trial_fails_otherwise(tmp_path):
    runner = batch_size.TrialRunner(arguments=["--config=nowhere.py"], backend="devices", workdir=tmp_path)
    with pytest.raises(ValueError, match=r"(?s)The trial of batch 16 exited with code 1; .*there is no file .*nowhere"):
        runner.attempt(16)


def test_combine_merges_the_results_of_workers(tmp_path):
    def say(*found):
        for earlier in tmp_path.iterdir():
            earlier.unlink()
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
def test_free_bytes_respects_the_control_group(tmp_path, monkeypatch, maximum, left):
    (tmp_path / "memory.max").write_text(maximum)
    (tmp_path / "memory.current").write_text("2000")
    unlimited = measure.free_bytes(tmp_path / "none")
    found = measure.free_bytes(tmp_path)
    assert found == left if left is not None else abs(found - unlimited) < 2**31
