"""Bad input ends a run soon, with exit code 1 and one message: the field or file, the value, and what to do."""

import itertools
import pathlib
import re
import subprocess
import time
from typing import Any

import keras
import numpy as np
import processes
import pytest
import small_runs
import tensorflow as tf
import topologies
from launching import python
from parameters import slow, slow_except
from small_runs import data

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import error_report, interruption
from tfdist.data import inspection
from tfdist.tools.many_runs import run_state
from tfdist.training import checkpointing, loop, setup

pytestmark = pytest.mark.usefixtures("own_signals")


def config(**changes: Any) -> c.Config:
    """Four steps of the small run on the digits; `changes` replaces parts of it."""
    return small_runs.config(**{"train": c.Train(steps=4)} | changes)


@pytest.fixture
def fails(capsys):
    """Trains in this process as main does; returns the error that a user reads, without the call in this file."""

    def run(workdir: pathlib.Path, bad: c.Config, *, warning: str = "", **options) -> str:
        keras.utils.clear_session()
        start = time.monotonic()
        try:
            code = loop.train(setup.build_run(bad, workdir), **options)
        except Exception as error:
            code = error_report.report_exception(error)
        said = capsys.readouterr()
        assert code == 1, said
        assert time.monotonic() - start < 120
        assert "Traceback" not in said.err and "in user code" not in said.err, said.err
        assert said.err.startswith(warning), said.err
        error = said.err.partition("\n")[2] if warning else said.err
        assert error.count("tfdist: ") == 1 and error.startswith("tfdist: "), said.err
        return re.sub(r"  Called at tests/workers/test_errors\.py, .*\n$", "", error.removeprefix("tfdist: "))

    return run


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--config.data.batchsize=3", "no such field. Did you mean 'data.batch_size'?"),
        ("--workdir=gs://bucket/run", "--workdir: 'gs://bucket/run' is an address, and must be a path"),
    ],
)
def test_a_wrong_flag_ends_main_at_once(tmp_path, option, message):
    command = topologies.command(tmp_path / "run", option, config="configs/digits.py")
    done = python(*command[1:], code=1, start=subprocess.run)
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


OF_TWELVE = {"target": "tfdist.zoo.sources:synthetic", "num_classes": 12, "shape": (8, 8, 1), "num_examples": 96}
OF_TFDS = {"target": "tfdist.zoo.sources:tfds", "name": "cifar10", "data_dir": "/nonexistent"}
SGD = {"target": "keras.optimizers:SGD"}
RESTORES = {"target": "keras.callbacks:EarlyStopping", "monitor": "val_loss", "restore_best_weights": True}


def images_prepared(**arguments: Any) -> c.Data:
    return data(prepare={"target": "tfdist.zoo.prepare:image", **arguments})


# A config, and what the message names: the field, its value, and the value to set.
CONTRADICTIONS = [
    (
        {"data": data(batch_size=33), "cluster": c.ClusterOptions(logical_devices=4)},
        r"config\.data\.batch_size=33 .* 4 replicas.* 32 or 36",
    ),
    slow(
        {"data": data(batch_size=36), "train": c.Train(steps=4, micro_batches=8)},
        r"config\.data\.batch_size=36 .* 8 parts.* 32 or",
    ),
    ({"data": data(batch_size=1443)}, r"config\.data\.batch_size=1443 .* 1442 .*'train'"),
    ({"model": {"target": "lab:linear", "num_classes": 12}}, r"config\.model\.num_classes=12, .*'train' .* 10"),
    slow({"data": data(source=OF_TWELVE, evaluation_split=None)}, r"config\.model\.num_classes=10, .*'train' .* 12"),
    ({"data": data(evaluation_split="validation")}, r"'validation'.* all, test, train"),
    ({"data": images_prepared(fip=True)}, r"config\.data\.prepare\.fip: .* 'flip'"),
    ({"data": images_prepared(crop=[16, 16])}, r"^prepare: crop=16x16 .* 8x8 .* pad=0"),
    ({"model": {"target": "lab:not_a_model"}}, r"config\.model\.target .* str"),
    slow({"optimizer": SGD | {"clipnorm": 1.0}}, r"config\.optimizer\.clipnorm=1\.0 .* config\.train\.clip_norm"),
    (
        {"optimizer": SGD | {"use_ema": True}, "callbacks": [RESTORES]},
        r"config\.callbacks\[0\]\.restore_best_weights=True .* config\.checkpoint\.best_metric",
    ),
    (
        {"objective": {"target": "lab:wrong_key"}},
        r"^config\.objective .*support/lab\.py, line \d+, .*\"images\"\].*'images'.* image float32 \(2, 8, 8, 1\)",
    ),
    (
        {"data": data(prepare={"target": "lab:wrong_type"})},
        r"^config\.data\.prepare .*lab\.py, line \d+, .*: TypeError: .* uint8 \(48, 8, 8, 1\), label int64 \(48,\)",
    ),
    (
        {"checkpoint": c.Checkpoint(best_metric="accurracy")},
        r"checkpoint\.best_metric='accurracy' .* loss, accuracy",
    ),
    ({"objective": {"target": "lab:averaged"}}, r"config\.objective .* 'loss' has shape \(\)"),
    (
        {"objective": {"target": "tfdist.zoo.objectives:classification", "labels": "labels"}},
        r"batch\['labels'\], .* image, label",
    ),
    (
        {"data": data(source=OF_TFDS)},
        r"(?s)'cifar10' .*'/nonexistent/cifar10/.*tfdist prepare --config=",
    ),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_contradictions_are_refused_before_anything_is_written(fails, tmp_path, changes, message):
    assert re.search(message, fails(tmp_path / "run", config(**changes)))
    assert not (tmp_path / "run").exists()


def folder(root: pathlib.Path, counts: dict[str, dict[str, int]], size: int = 8) -> pathlib.Path:
    """Writes JPEGs of noise, PATH/SPLIT/CLASS/NUMBER.jpg."""
    rng = np.random.default_rng(0)
    for split, classes in counts.items():
        for label, count in classes.items():
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                image = tf.io.encode_jpeg(rng.integers(0, 255, (size, size, 3), np.uint8))
                (root / split / label / f"{number}.jpg").write_bytes(image.numpy())
    return root


def images(root: pathlib.Path, memory_limit_mb: int = 100, **changes) -> c.Config:
    source = {"target": "tfdist.zoo.sources:image_folder", "path": str(root), "memory_limit_mb": memory_limit_mb}
    prepare = {"target": "tfdist.zoo.prepare:image"}
    model = {"target": "lab:linear", "num_classes": 2, "input_shape": (8, 8, 3)}
    return config(model=model, data=data(source=source, prepare=prepare, batch_size=8), **changes)


def cut(path: pathlib.Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 60])


@pytest.mark.parametrize(
    ("limit", "split"), slow_except(itertools.product((100, 0), ("train", "test")), [(0, "train")])
)
def test_an_unreadable_image_is_named(fails, tmp_path, limit, split):
    """One that is read while the run trains: `test_an_unreadable_image_ends_all_workers`."""
    root = folder(tmp_path / "images", {"train": {"cat": 12, "dog": 12}, "test": {"cat": 4, "dog": 4}})
    broken = root / split / "dog" / "3.jpg"
    cut(broken)
    said = fails(tmp_path / "run", images(root, limit))
    assert said.startswith(f"The image {str(broken)!r} cannot be read: ") and "Repair or remove it." in said


def unreadable(**options: Any) -> c.Data:
    return data(source={"target": "lab:Unreadable", **options})


@pytest.mark.parametrize("value", [keras.initializers.HeNormal(), {"values": [np.zeros(2)]}], ids=["object", "array"])
def test_a_value_that_cannot_be_compared_with_that_of_a_saved_run_is_refused(fails, tmp_path, value):
    """The run trained, and was refused when it resumed: the text of an object has its address."""
    said = fails(tmp_path, config(model={"target": "lab:linear", "kernel": value}))
    field, kind = (r".values\[0\]", "ndarray") if isinstance(value, dict) else ("", "HeNormal")
    line = rf"  config\.model\.kernel{field} must be a finite number, .* `target` names\. Received: {kind}\n"
    assert re.fullmatch(rf"The config is invalid:\n{line}", said), said


@pytest.mark.parametrize(
    ("split", "label"), slow_except([("train", 10), ("train", -1), ("test", 2**62)], [("test", 2**62)])
)
def test_a_label_out_of_range_is_named_with_its_example(fails, tmp_path, split, label):
    bad = config(data=unreadable(label=label, labels_of=split))
    said = fails(tmp_path, bad, warning="tfdist: worker 0: WARNING: there is a label 10, " if label == 10 else "")
    assert re.match(rf"Example 17 .* {split!r} has the label {label}, .* 10 outputs", said), said


@pytest.mark.slow
def test_an_error_of_the_model_is_shown_without_a_search_of_the_data(tmp_path, capsys):
    with pytest.raises(ValueError, match="Example 17 of the split 'train' has the label 99"):
        small_runs.train(tmp_path, data=unreadable(label=99))
    assert "verifying" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_search_of_the_data_has_a_limit(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(inspection, "SECONDS", 0.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a damaged file"):
        small_runs.train(tmp_path, data=unreadable(seconds=3.0))
    assert capsys.readouterr().out.count("verifying") == 1


@pytest.mark.slow
def test_images_of_another_size_are_named(fails, tmp_path):
    root = folder(tmp_path / "images", {"train": {"cat": 12, "dog": 12}, "test": {"cat": 4, "dog": 4}})
    (root / "train" / "dog" / "5.jpg").write_bytes(tf.io.encode_jpeg(np.zeros((9, 8, 3), np.uint8)).numpy())
    said = fails(tmp_path / "run", images(root, 0))
    assert "dog/5.jpg" in said and "[8,8,3]" in said and "size=" in said


def test_folders_that_lack_something_are_named(fails, tmp_path):
    root = folder(tmp_path / "images", {"train": {"cat": 12, "dog": 12}, "test": {"cat": 4}})
    said = fails(tmp_path / "run", images(root))
    assert "lacks the class 'dog'" in said
    (root / "test" / "dog").mkdir()
    said = fails(tmp_path / "run", images(root))
    assert f"no images in {str(root / 'test' / 'dog')!r}, but no files" in said
    (tmp_path / "empty").mkdir()
    said = fails(tmp_path / "run", images(tmp_path / "empty"))
    assert "has no split 'train'. It has: none." in said
    said = fails(tmp_path / "run", images(tmp_path / "nowhere"))
    assert f"there is no folder {str(tmp_path / 'nowhere')!r}" in said
    assert not (tmp_path / "run").exists()


def npz(path: pathlib.Path) -> c.Config:
    return config(data=data(source={"target": "tfdist.zoo.sources:npz", "path": str(path), "num_classes": 10}))


def test_a_damaged_npz_and_bad_labels_are_named(fails, tmp_path):
    path = tmp_path / "data.npz"
    arrays = {"x_train": np.zeros((96, 8, 8), np.uint8), "x_test": np.zeros((8, 8, 8), np.uint8)}
    np.savez(path, **arrays, y_train=np.arange(96) % 10, y_test=np.array([0, 1, 2, 10, 4, 5, 11, 7]))
    said = fails(tmp_path / "run", npz(path))
    assert "split 'test': labels must be within 0..9 (10 classes). Received: 10 for example 3, and 1 more" in said
    np.savez(path, **arrays, y_train=np.arange(96) % 10, y_test=np.arange(8))
    content = path.read_bytes()
    for damaged in (content[:-100], content[:300] + b"\xff" * 200 + content[500:], b"", b"GIF89a"):
        path.write_bytes(damaged)
        said = fails(tmp_path / "run", npz(path))
        assert str(path) in said and ("is damaged" in said or "cannot be read" in said), said
    path.unlink()
    assert f"there is no file {str(path)!r}" in fails(tmp_path / "run", npz(path))
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_cannot_be_written_is_named(fails, tmp_path):
    (tmp_path / "file").write_text("")
    for workdir in (tmp_path / "file" / "run", pathlib.Path("/proc/run")):
        said = fails(workdir, config())
        assert f"The workdir {str(workdir)!r} cannot be written: " in said and "choose another workdir" in said


def finite(path: pathlib.Path) -> bool:
    with np.load(path / "arrays.npz") as file:
        return all(np.isfinite(file[name]).all() for name in file.files)


def test_weights_that_are_no_longer_finite_are_not_saved(fails, tmp_path):
    said = fails(
        tmp_path,
        config(
            data=data(prepare={"target": "lab:with_epoch"}),
            objective={"target": "lab:bad_gradient_from_epoch", "epoch": 1},
            train=c.Train(steps=50),
            checkpoint=c.Checkpoint(every=c.Every(steps=1), keep=2),
            evaluation=c.Evaluation(every=c.Every()),
        ),
    )
    # 1,442 examples in batches of 48 are 30 steps an epoch.
    assert re.match("The variable model/logits/kernel .* step 31.* checkpoint of step 30 ", said), said
    steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert steps == ["step-00000029", "step-00000030"]
    assert all(finite(tmp_path / "checkpoints" / name) for name in steps)


@pytest.mark.slow
def test_a_mask_with_infinities_is_saved(tmp_path):
    for steps in (4, 6):
        small_runs.train(tmp_path, model={"target": "lab:causal", "num_classes": 10}, train=c.Train(steps=steps))
    mask = topologies.arrays(tmp_path, step=6)["model/attention/mask"]
    assert (mask == -np.inf).sum() == 28 and topologies.records(tmp_path, "train")[-1]["loss"] > 0


def test_python_functions_in_a_step_are_named(tmp_path, capsys):
    small_runs.train(tmp_path, objective={"target": "lab:shaken"}, train=c.Train(steps=4))
    words = r"WARNING: The training step calls Python functions: \S*PyFunc \(PyFunc\) at \S*/lab\.py:"
    assert len(re.findall(f"tfdist: {words}", capsys.readouterr().err)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_no_number_stops_all_and_keeps_the_last_good_checkpoint(tmp_path, workers):
    options = [
        "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
        "--config.data.prepare={'target': 'tests.support.lab:with_epoch'}",
        "--config.objective={'target': 'tests.support.lab:nan_from_epoch', 'epoch': 1}",
        *("--config.train.steps=90", "--config.checkpoint.every.steps=8", "--config.report.every.steps=5"),
        "--config.evaluation.every.steps=none",
    ]
    command = topologies.command(tmp_path / "run", *options)
    codes, outputs = processes.run([command] * workers, topologies.environments(workers))
    assert codes == [1] * workers, outputs
    for output in outputs:
        pattern = r"The loss is nan in steps (\d+) to (\d+)\. The checkpoint of step (\d+) is kept\. Lower config"
        found = re.search(pattern, output)
        assert found and "Traceback" not in output, output
        first, last, saved = map(int, found.groups())
        assert (first <= 31 <= last <= 35 and saved == 24) or saved == 30
    run = run_state.read(tmp_path / "run")
    assert run["state"] == "diverged" and "The loss is nan" in run["trouble"]
    newest = checkpoint_format.newest_valid(tmp_path / "run" / "checkpoints", pytest.fail)
    assert newest.step in (24, 30) and finite(newest.path)
    assert not (tmp_path / "run" / checkpointing.FINISHED).exists()


@pytest.mark.slow
def test_an_unreadable_image_ends_all_workers(tmp_path):
    root = folder(tmp_path / "images", {"train": {"cat": 12, "dog": 12}, "test": {"cat": 4, "dog": 4}})
    broken = root / "train" / "dog" / "3.jpg"
    cut(broken)
    options = [
        f"--config.data.source={{'target': 'tfdist.zoo.sources:image_folder', 'path': {str(root)!r}, "
        "'memory_limit_mb': 0}",
        "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 2, 'input_shape': (8, 8, 3)}",
        "--config.data.batch_size=8",
    ]
    command = topologies.command(tmp_path / "run", *options)
    codes, outputs = processes.run([command] * 2, topologies.environments(2))
    # A worker that reads it exits with 1. One that does not receives the reason and exits with 76.
    assert 1 in codes and set(codes) <= {1, interruption.EXIT_PEER_LOST}, outputs
    for output in outputs:
        assert f"The image {str(broken)!r} cannot be read: " in output and "Traceback" not in output


@pytest.mark.slow
def test_a_model_that_cannot_be_exported_is_exported_by_the_next_start(tmp_path, fails, capsys):
    workdir = tmp_path / "run"
    in_the_way = workdir / "model.keras" / "something"
    in_the_way.mkdir(parents=True)
    options = {"checkpoint": c.Checkpoint(export=True), "train": c.Train(steps=4)}
    assert re.match(f"All 4 steps .* {workdir} is not writable: ", fails(workdir, config(**options)))
    assert not list(workdir.glob("*.writing.keras")) and not (workdir / checkpointing.FINISHED).exists()
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    small_runs.train(workdir, **options)
    assert "finished after step 4" in capsys.readouterr().out
    assert keras.models.load_model(workdir / "model.keras").name == "linear"
