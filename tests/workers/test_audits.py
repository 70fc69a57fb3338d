"""`config.consistency.audit`: a replica that computes wrongly is named, and the run ends or goes back."""

import shutil

import processes
import pytest
import topologies

from tfdist.training.consistency import audit

CONFIG = "tests/configs/audited.py"
LINEAR = (
    *("--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}", "--config.train.steps=6"),
    *("--config.train.virtual_replicas=4", "--config.train.clip_norm=none"),
)
OFF = "--config.consistency.audit.every=none"


def train(workdir, *options, workers=1, devices=1, code=0, **fault):
    """Trains with a planted fault; returns what the workers say."""
    objective = f"--config.objective={ ({'target': 'tests.support.faulty:objective'} | fault)!r}"
    options = [f"--config.cluster.logical_devices={devices}", objective, *options]
    line = topologies.command(workdir, *options, config=CONFIG)
    codes, outputs = processes.run([line] * workers, topologies.environments(workers), timeout=600)
    assert codes == [code] * workers and "Traceback" not in "".join(outputs), outputs
    return outputs


def last_hash(workdir):
    return topologies.records(workdir, "state")[-1]["hash"]


@pytest.mark.slow
def test_a_fault_is_named_and_the_run_goes_back_and_has_the_bits_of_one_without(tmp_path):
    faulty, clean = tmp_path / "faulty", tmp_path / "clean"
    options = ("--config.consistency.audit.every=2", "--config.consistency.audit.action=restore")
    saves = "--config.checkpoint.every.steps=1"
    train(faulty, *LINEAR, *options, saves, devices=4, place="gradient", replica=2, step=4, times=1)
    (text,) = [line["text"] for line in topologies.records(faulty, "warning") if "audit" in line["text"]]
    assert "The audit of step 4 " in text and "of step 2. The run goes back to it: 1 of at most 3 times." in text
    (named,) = [line for line in text.splitlines() if "device" in line]
    assert "worker 0 (host" in named and "replica 2), device CPU:2: computed other bits" in named
    assert "(a transient fault)" in named and "logits/kernel" in named
    assert [path.name for path in (faulty / audit.UNAUDITED / "1").iterdir()] == ["step-00000003"]
    train(clean, *LINEAR, OFF)
    assert last_hash(faulty) == last_hash(clean)


@pytest.mark.slow
def test_a_persistent_fault_ends_the_run_and_the_same_command_continues(tmp_path):
    outputs = train(tmp_path, *LINEAR, workers=4, code=77, place="gradient", replica=2, step=2, times=1000, bit=25)
    for text in outputs:
        assert "The audit of step 3 " in text and "There is no audited checkpoint." in text
        assert "worker 2 (host" in text and "(a persistent fault)" in text and "run the same command" in text
    shutil.rmtree(tmp_path)
    train(tmp_path, *LINEAR, workers=4)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(4, 1), (2, 2)])
def test_a_flipped_bit_in_memory_is_named_on_any_topology(tmp_path, workers, devices):
    faulty, clean = tmp_path / "faulty", tmp_path / "clean"
    options = ("--config.checkpoint.every.steps=5", "--config.consistency.audit.action=restore")
    fault = {"place": "weight", "replica": 3 % devices if workers == 1 else 3, "step": 11, "times": 1, "bit": 3}
    train(faulty, *options, workers=workers, devices=devices, **fault)
    (text,) = [line["text"] for line in topologies.records(faulty, "warning") if "audit" in line["text"]]
    place = "worker 3 (host" if devices == 1 else "worker 1 (host"
    assert place in text and "holds another state than most: model/conv/kernel" in text, text
    train(clean, OFF)
    assert last_hash(faulty) == last_hash(clean)


@pytest.mark.slow
def test_with_two_replicas_both_are_named(tmp_path):
    (text,) = train(tmp_path, *LINEAR, devices=2, code=77, place="gradient", replica=1, step=2, times=1000)
    assert text.count("this replica or another one is wrong, and no third one says which") == 2


@pytest.mark.slow
def test_the_number_of_returns_is_limited(tmp_path):
    options = ("--config.consistency.audit.action=restore", "--config.consistency.audit.limit=1")
    saves = "--config.checkpoint.every.steps=2"
    fault = {"place": "gradient", "replica": 1, "step": 5, "times": 1000}
    (text,) = train(tmp_path, *LINEAR, *options, saves, devices=4, code=77, **fault)
    assert "has gone back 1 times before, which is the maximum" in text
    assert sorted(path.name for path in (tmp_path / audit.UNAUDITED).iterdir()) == ["1", "2"]


@pytest.mark.slow
def test_one_replica_has_nothing_to_compare_with(tmp_path):
    train(tmp_path, *LINEAR)
    (text,) = [line["text"] for line in topologies.records(tmp_path, "warning") if "audit" in line["text"]]
    assert "has no effect: one replica has no other" in text
