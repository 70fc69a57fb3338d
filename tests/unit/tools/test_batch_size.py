"""The search for the largest batch that fits: its trials in processes of their own, and their verdicts."""

import json

import forked
import pytest
from launching import csv_rows, tfdist

from tfdist.tools import batch_size, measure


def run(*options, code=0):
    """Runs the command, and returns its output."""
    done = tfdist("batch_size", "--config=configs/digits.py", *options, code=code, start=forked.run)
    return done.stdout + done.stderr


def test_the_batch_is_doubled_until_it_does_not_fit(tmp_path, capsys, monkeypatch):
    batches = []

    def attempt(arguments, batch, folder):
        batches.append(batch)
        if batch > 48:
            return {"result": batch_size.OUT_OF_MEMORY, "replicas": 2}
        return {"result": batch_size.FITS, "replicas": 2, "memory_mb": 1.0, "step_ms": 2.0}

    monkeypatch.setattr(batch_size, "attempt", attempt)
    batch_size.find([], tmp_path, 24)
    assert batches == [24, 48, 96] and "--config.data.batch_size=96\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"batch of 128 on a replica: out of memory.*config.data.batch_size"):
        batch_size.find([], tmp_path, 128)


@pytest.mark.slow
def test_batch_size_runs_each_trial_in_its_own_process(tmp_path):
    options = ["--config.cluster.logical_devices=2", f"--workdir={tmp_path}", "--config.data.train_split=train[:40]"]
    options.append("--config.data.batch_size=8")
    options.append("--config.callbacks=[{'target': 'keras.callbacks:EarlyStopping', 'monitor': 'val_loss'}]")
    found = run(*options)
    rows = {int(row["batch_per_replica"]): row for row in csv_rows(tmp_path / "batch_size.csv")}
    results = dict.fromkeys((8, 16), batch_size.FITS) | {32: batch_size.TOO_FEW}
    assert {batch: row["result"] for batch, row in rows.items()} == results
    assert float(rows[16]["memory_mb_per_replica"]) > 100 and float(rows[16]["step_ms"]) > 0
    last, limit = found.splitlines()[-2:]
    assert last.endswith("16 per replica, 32 over 2 replica(s): --config.data.batch_size=32")
    assert limit == "Memory was not the limit: the number of examples ended the search."
    # Groups of 32 examples are normalised together.
    found = run(*options, "--config.model.group_size=32", code=1)
    assert "The trial of batch 8 exited with code 1" in found and "group_size" in found


@pytest.mark.workers
def test_trial_over_its_memory_limit_ends_only_itself(tmp_path):
    found = run("--trial=8", f"--workdir={tmp_path / 'batch-8'}", "--memory_mb=150", code=137)
    assert batch_size.result_of(tmp_path / "batch-8", 137)["result"] == batch_size.OUT_OF_MEMORY, found


def test_a_trial_that_was_killed_is_out_of_memory(tmp_path):
    assert batch_size.result_of(tmp_path, -9) == {"result": batch_size.OUT_OF_MEMORY}
    assert batch_size.result_of(tmp_path, 1) is None
    (tmp_path / "result.json").write_text(json.dumps({"result": batch_size.FITS}))
    assert batch_size.result_of(tmp_path, 0) == {"result": batch_size.FITS}
    assert batch_size.result_of(tmp_path, -9) == {"result": batch_size.OUT_OF_MEMORY}
    assert measure.free_bytes() > 0


@pytest.mark.parametrize("maximum, left", [("5000", 3000), ("1000", 0)])
def test_free_bytes_respects_the_control_group(tmp_path, maximum, left):
    (tmp_path / "memory.max").write_text(maximum)
    (tmp_path / "memory.current").write_text("2000")
    assert measure.free_bytes(tmp_path) == left
