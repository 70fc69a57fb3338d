"""Virtual replicas in an unchanged script: the same bits, histories and values on any number of replicas."""

import json
import signal
import sys

import processes
import pytest
from launching import run_all, worker_environment
from topologies import environments

SCRIPT = "tests/scripts/virtual_replicas.py"


def line(*flags, out, kill_at=0, parts=2):
    """The command of a worker."""
    script = [SCRIPT, f"--out={out}", f"--kill_at={kill_at}", f"--parts={parts}"]
    return [sys.executable, "-m", "tfdist.run", "--virtual_replicas=8", *flags, *script]


def results(path):
    """Histories, values of evaluations and hashes of the two models."""
    return json.loads(path.read_text())


def check_values(found):
    """Losses and metrics are those of a training: no NaN, no zeros."""
    history, _, digest, *others = found
    assert len(digest) == 64
    assert {*history} == {f"{end}{name}" for end in ("", "val_") for name in
                          ("loss", "accuracy", "sparse_top_k_categorical_accuracy")}  # fmt: skip
    assert all(0 < value < 10 for values in history.values() for value in values)
    for prices, evaluated, _ in others and [others]:
        assert all(value > 1e9 for value in prices["price_loss"])
        assert evaluated["price_mae"] > 1e5


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "most"), [(1, 2), (2, 4)])
def test_an_unchanged_script_has_the_same_bits_on_several_devices(tmp_path, parts, most):
    lines = [line(f"--logical_devices={devices}", out=tmp_path / f"{devices}", parts=parts) for devices in (1, most)]
    run_all(lines, [worker_environment()] * 2, timeout=600.0)
    check_values(results(tmp_path / "1"))
    assert results(tmp_path / f"{most}") == results(tmp_path / "1")


@pytest.mark.slow
@pytest.mark.usefixtures("graph_optimizers")
def test_a_script_that_is_killed_has_the_same_bits_on_another_number_of_workers(tmp_path):
    run_all([line(out=tmp_path / "one")], [worker_environment()], timeout=600.0)
    for name, first, others in (("apart", 1, 2), ("together", 2, 1)):
        workdir = f"--workdir={tmp_path / name}"
        command = line(workdir, "--logical_devices=2", out=tmp_path / f"{name}.json", kill_at=8)
        codes, outputs = processes.run([command] * first, environments(first), timeout=600.0)
        assert -signal.SIGKILL in codes or 128 + signal.SIGKILL in codes, outputs
        run_all([line(workdir, out=tmp_path / f"{name}.json")] * others, environments(others), timeout=600.0)
        assert results(tmp_path / f"{name}.json") == results(tmp_path / "one")
