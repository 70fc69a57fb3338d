"""`config.train.virtual_replicas`: the same bits on any number of replicas, and after a resume on another number."""

import pytest
import topologies

CONFIG = "tests/configs/virtual.py"
# Gradients are 0 in the first epoch, of 3 steps, and 2^12 times as large in the third.
GROWING = [
    "--config.objective={'target': 'tests.support.lab:growing'}",
    "--config.data.prepare={'target': 'tests.support.lab:with_epoch'}",
    *("--config.data.batch_size=480", "--config.data.evaluation_batch_size=480", "--config.train.clip_norm=none"),
]
MIXED = [
    *("--config.train.precision=float16", "--config.train.micro_batches=2", "--config.train.nonfinite=skip"),
    "--config.optimizer={'target': 'keras.optimizers:SGD', 'momentum': 0.9, 'use_ema': True}",
]
# Networks, optimizers; 500 steps each.
LONG = {
    "digits": ["--config.optimizer={'target': 'keras.optimizers:SGD', 'momentum': 0.9}"],
    "muon": ["--config.optimizer={'target': 'tfdist.configs.networks.optimizers:muon'}"],
    "resnet20": ["--config.model={'target': 'tfdist.zoo.models:cifar_resnet', 'input_shape': (8, 8, 1)}"],
}


def hashes(workdir):
    """(step, hash), once for each step."""
    return sorted({(line["step"], line["hash"]) for line in topologies.records(workdir, "state")})


def values(workdir):
    """The reports of training and evaluation, without times."""
    lines = [*topologies.records(workdir, "train"), *topologies.records(workdir, "evaluation")]
    return [{name: line[name] for name in ("kind", "step", "loss", "accuracy")} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(2, 2), (2, 1), (1, 4)])
def test_one_hash_on_one_replica_and_after_a_resume_on_several(tmp_path, workers, devices):
    one = tmp_path / "one"
    topologies.train(one, config=CONFIG)
    assert len({value for _, value in hashes(one)}) == len(hashes(one)) == 8
    moved = topologies.cut_back(one, tmp_path / "moved", newest=6)
    topologies.train(moved, workers=workers, devices=devices, config=CONFIG)
    assert [pair for pair in hashes(moved) if pair[0] != 7] == hashes(one)
    assert values(moved) == values(one)
    arrays = topologies.arrays(moved, step=12)
    assert (arrays["virtual_replicas/ranges"] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [GROWING, MIXED], ids=["growing", "mixed"])
def test_hard_gradients_have_one_hash(tmp_path, options):
    for workers, devices in ((1, 1), (1, 2), (2, 2)):
        workdir = tmp_path / f"{workers}x{devices}"
        topologies.train(workdir, *options, workers=workers, devices=devices, config=CONFIG)
        assert hashes(workdir) == hashes(tmp_path / "1x1")
        assert values(workdir) == values(tmp_path / "1x1")


@pytest.mark.slow
@pytest.mark.usefixtures("graph_optimizers")
@pytest.mark.parametrize("name", LONG)
def test_long_trainings_have_one_hash(tmp_path, name):
    steps = ["--config.train.steps=500", "--config.report.every.steps=100", "--config.evaluation.every.steps=none"]
    for workers, devices in ((1, 1), (2, 1), (1, 4), (2, 4)):
        workdir = tmp_path / f"{workers}x{devices}"
        topologies.train(workdir, *LONG[name], *steps, workers=workers, devices=devices, config=CONFIG)
        assert hashes(workdir)[-1] == hashes(tmp_path / "1x1")[-1]
