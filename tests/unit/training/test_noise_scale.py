"""`config.report.noise_scale`: the estimator against known distributions, and a run's values against NumPy's."""

import math
import shutil

import keras
import lab
import numpy as np
import pytest
import topologies

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.config import validate
from tfdist.training import checkpointing
from tfdist.training.step.variants import noise_scale
from tfdist.zoo import sources

CONFIG = "tests/configs/noise.py"
STEPS, BATCH, RATE, DECAY = 8, 48, 0.1, 2 / 3
NAMES = ("noise_scale", "gradient_square", "gradient_variance")


def sums_of_parts(gradients, sizes):
    """`parts` and `whole` of `noise_scale.estimate`, of the gradients of single examples, [..., examples, numbers]."""
    batch, parts, contributions = sum(sizes), 0.0, []
    for part in np.split(gradients, np.cumsum(sizes)[:-1], axis=-2):
        weight = part.shape[-2] / batch
        contributions.append(weight * part.mean(axis=-2))
        parts = parts + (contributions[-1] ** 2).sum(axis=-1) / weight
    return parts, (sum(contributions) ** 2).sum(axis=-1)


@pytest.mark.parametrize("sizes", [(16, 16), (4, 4, 4, 4), (1, 2, 5), (30, 2)])
def test_the_estimates_of_a_known_distribution_are_unbiased(sizes):
    generator, steps = np.random.default_rng(0), 40_000
    mean = np.array([0.3, -0.2, 0.1, 0.4])
    factor = generator.normal(size=(4, 4))  # Sigma = factor factor^T is not diagonal.
    noise = generator.normal(size=(steps, sum(sizes), 4)) @ factor.T
    estimates = noise_scale.estimate(*sums_of_parts(mean + noise, sizes), len(sizes), sum(sizes))
    for found, known in zip(estimates, ((mean**2).sum(), (factor**2).sum()), strict=True):
        error = found.std() / math.sqrt(steps)
        assert abs(found.mean() - known) < 4 * error and error < 0.05 * known
    ratio = noise_scale.values([each.mean() for each in estimates] + [1.0])["noise_scale"]
    assert ratio == pytest.approx((factor**2).sum() / (mean**2).sum(), rel=0.15)


def test_equal_parts_have_the_estimator_of_the_paper():
    small, big, norm_of_small, norm_of_big = 8, 32, 3.7, 1.9  # The squared norms, of a batch of 8 and one of 32.
    square, variance = noise_scale.estimate(norm_of_small, norm_of_big, 4, big)
    assert square == pytest.approx((big * norm_of_big - small * norm_of_small) / (big - small))
    assert variance == pytest.approx((norm_of_small - norm_of_big) / (1 / small - 1 / big))


def test_an_unmeasurable_noise_scale_is_infinite_or_absent():
    assert noise_scale.values([0.0, 0.0, 0.0]) == {}
    assert noise_scale.values([0.5, 10.0, 0.25]) == dict(zip(NAMES, (20.0, 2.0, 40.0), strict=True))
    assert noise_scale.values([-0.5, 10.0, 0.25])["noise_scale"] == math.inf
    assert noise_scale.values([0.5, -10.0, 0.25])["noise_scale"] == 0.0


def expected(kernel, bias, parts):
    """The averages after each step of the config, computed by NumPy from the initial weights."""
    source, averages, every = sources.digits("train"), np.zeros(3), []
    for step in range(STEPS):
        batch = {key: np.array(value) for key, value in source.read(range(step * BATCH, (step + 1) * BATCH)).items()}
        images = batch["image"].reshape(BATCH, -1) / 16.0
        logits = images @ kernel + bias
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = chances / chances.sum(axis=1, keepdims=True) - np.eye(10)[batch["label"]]
        of_examples = np.concatenate([images[:, :, None] * errors[:, None, :], errors[:, None, :]], axis=1)
        # Contiguous shards of replicas; the micro-batches of a shard take every second example.
        order = np.concatenate([one[half::2] for one in np.split(np.arange(BATCH), 2) for half in range(2)])
        flat = of_examples.reshape(BATCH, -1)
        flat = flat[order] if parts == 4 else flat
        numbers = noise_scale.estimate(*sums_of_parts(flat, [BATCH // parts] * parts), parts, BATCH)
        averages = DECAY * averages + (1 - DECAY) * np.array([*numbers, 1.0])
        every.append(averages)
        gradient = of_examples.mean(axis=0)
        kernel, bias = kernel - RATE * gradient[:-1], bias - RATE * gradient[-1]
    return every


def initial_weights():
    """Kernel and bias before the first step."""
    keras.utils.set_random_seed(0)
    return (array.astype(np.float64) for array in lab.linear().get_weights())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Workdirs: of two workers, and of two devices with two micro-batches each."""
    folder = tmp_path_factory.mktemp("noise")
    topologies.train(folder / "workers", workers=2, config=CONFIG)
    topologies.train(folder / "devices", "--config.train.micro_batches=2", devices=2, config=CONFIG)
    return folder


@pytest.mark.workers
@pytest.mark.parametrize(("name", "parts"), [pytest.param("workers", 2, marks=pytest.mark.slow), ("devices", 4)])
def test_two_workers_and_two_devices_measure_what_numpy_computes(trained, name, parts):
    every = expected(*initial_weights(), parts)
    for step in (4, 8):
        saved = topologies.arrays(trained / name, step)[noise_scale.AVERAGES]
        np.testing.assert_allclose(saved, every[step - 1], rtol=1e-4)
        line = next(line for line in topologies.records(trained / name, "train") if line["step"] == step)
        assert [line[each] for each in NAMES] == list(noise_scale.values(saved.tolist()).values())


@pytest.mark.slow
@pytest.mark.workers
def test_the_averages_resume_to_the_bit_and_change_no_other_number(trained, tmp_path):
    whole, resumed = trained / "devices", tmp_path / "resumed"
    shutil.copytree(whole, resumed)
    (resumed / checkpointing.FINISHED).unlink()
    shutil.rmtree(resumed / "checkpoints" / "step-00000008")
    topologies.train(resumed, "--config.train.micro_batches=2", devices=2, config=CONFIG)
    first, second = topologies.arrays(whole, 8), topologies.arrays(resumed, 8)
    assert first.keys() == second.keys() and noise_scale.AVERAGES in first
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    lines = [topologies.records(workdir, "train")[-1] for workdir in (whole, resumed)]
    assert [lines[0][name] for name in NAMES] == [lines[1][name] for name in NAMES]
    # The field may be set or removed when a run is resumed.
    saved = checkpoint_format.verify(resumed / "checkpoints" / "step-00000008")
    others = {name: array for name, array in first.items() if name != noise_scale.AVERAGES}
    checkpoint_format.check_variables(saved, others)
    checkpoint_format.check_variables(saved, first | {"report/another": np.zeros(3)})
    with pytest.raises(ValueError, match="model/another is missing in the checkpoint"):
        checkpoint_format.check_variables(saved, first | {"model/another": np.zeros(3)})


@pytest.mark.workers
@pytest.mark.slow
def test_the_field_changes_no_weight_and_no_hash(trained, tmp_path):
    topologies.train(tmp_path, "--config.report.noise_scale=none", workers=2, config=CONFIG)
    first, second = topologies.arrays(trained / "workers", 8), topologies.arrays(tmp_path, 8)
    first.pop(noise_scale.AVERAGES)
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    hashes = [[line["hash"] for line in topologies.records(w, "state")] for w in (trained / "workers", tmp_path)]
    assert hashes[0] == hashes[1]
    assert not set(NAMES) & set(topologies.records(tmp_path, "train")[-1])
    # The field may be set when the run is resumed: the averages begin there, and the weights are the same.
    (tmp_path / checkpointing.FINISHED).unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000008")
    topologies.train(tmp_path, workers=2, config=CONFIG)
    resumed = topologies.arrays(tmp_path, 8)
    assert resumed.pop(noise_scale.AVERAGES)[2] == pytest.approx(1 - DECAY**4)
    assert all(first[name].tobytes() == resumed[name].tobytes() for name in first)
    assert topologies.records(tmp_path, "train")[-1]["noise_scale"] > 0


@pytest.mark.workers
@pytest.mark.slow
def test_loss_scale_clipping_and_skipping_leave_the_values(trained, tmp_path):
    options = ["--config.train.precision=float16", "--config.train.nonfinite=skip", "--config.train.clip_norm=1000"]
    topologies.train(tmp_path, *options, "--config.train.micro_batches=2", devices=2, config=CONFIG)
    saved = topologies.arrays(tmp_path, 8)[noise_scale.AVERAGES]
    np.testing.assert_allclose(saved, topologies.arrays(trained / "devices", 8)[noise_scale.AVERAGES], rtol=0.02)


@pytest.mark.workers
@pytest.mark.slow
def test_one_replica_with_one_micro_batch_says_what_is_missing(tmp_path):
    topologies.train(tmp_path, config=CONFIG)
    texts = [line["text"] for line in topologies.records(tmp_path, "warning")]
    assert any("measured from two replicas on, or with config.train.micro_batches=2 or more" in one for one in texts)
    assert not set(NAMES) & set(topologies.records(tmp_path, "train")[-1])


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"train": c.Train(steps=1, local_steps=2)}, r"train\.local_steps=1.* Received: 2, False, None"),
        ({"train": c.Train(steps=1, virtual_replicas=4)}, r"virtual_replicas=None\. Received: 1, False, 4"),
        (
            {"communication": c.Communication(dtype="bfloat16")},
            r"communication\.dtype=.*: 'bfloat16'",
        ),
    ],
)
def test_a_config_in_which_it_cannot_be_measured_is_refused(options, needs):
    config = c.Config(**{"model": {"target": "m:f"}, "train": c.Train(steps=1), **options})
    config.report.noise_scale = 100
    with pytest.raises(ValueError, match=rf"report\.noise_scale=100 needs .*{needs}"):
        validate.validate(config)
