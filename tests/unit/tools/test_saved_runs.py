"""What is done with a run: `tfdist train` its workdir, `evaluate`, `predict`, `inspect` and `export`."""

import csv
import importlib.util
import json
import os
import pathlib
import re
import sys
import types

import forked
import keras
import launching
import numpy as np
import processes
import pytest
import tensorflow as tf
import topologies
from parameters import slow
from PIL import Image

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.tools.saved_runs import examples, export, predict, saved
from tfdist.zoo import splits

CLASSES = ("dark", "light")
MODULE = """
import keras

def net(num_classes):
    return keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Flatten(), keras.layers.Dense(num_classes)])
"""
CONFIG = """
from tfdist import config as c

def get_config():
    return c.Config(
        model={"target": "my_net:net", "num_classes": 2},
        data=c.Data(source={"target": "tfdist.zoo.sources:image_folder", "path": "images"}, batch_size=8),
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.5),
        train=c.Train(steps=20),
        checkpoint=c.Checkpoint(best_metric="accuracy", keep=2),
        report=c.Report(tensorboard=False),
        cluster=c.ClusterOptions(logical_devices=2, connect_seconds=240.0),
    )
"""


def saved_run(data, about=None, objective=None):
    """A run with this data, as the commands open it."""
    config = c.Config(model={"target": "x:y"}, data=data, train=c.Train(steps=1))
    config.objective = objective or config.objective
    return saved.SavedRun(workdir=pathlib.Path("runs/mine"), config=config, about=about or {})


def test_outputs_become_probabilities():
    run = saved_run(c.Data())
    for outputs, expected in (
        ([[0.0, 0.0, np.log(2.0)], [-800.0, 0.0, 800.0]], [[0.25, 0.25, 0.5], [0, 0, 1]]),
        ([[0.2, 0.8]], [[0.2, 0.8]]),
        ([[0.25]], [[0.75, 0.25]]),  # Of a sigmoid.
    ):
        np.testing.assert_allclose(predict.probabilities(run, np.array(outputs)), expected)
    np.testing.assert_allclose(predict.probabilities(run, np.array([[0.0], [-2.0]]))[0], [0.5, 0.5])
    run = saved_run(c.Data(), objective={"target": "x:y", "arguments": {"from_logits": True}})
    np.testing.assert_allclose(predict.probabilities(run, np.array([[0.25]]))[0, 1], 1 / (1 + np.exp(-0.25)))
    run = saved_run(c.Data(), {"classes": ["a", "b"]})
    assert predict.class_names(run, 2) == ["a", "b"] and predict.class_names(run, 3) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("prepare", "dtype", "shape"),
    [
        ({"target": "tfdist.zoo.inception:image", "size": 4}, tf.string, (1,)),
        ({"target": "tfdist.zoo.prepare:image", "crop": [4, 4]}, tf.uint8, (1, 9, 7, 3)),
        ({"target": "tfdist.zoo.prepare:image", "crop": [4, 4], "resize": [6, 5]}, tf.uint8, (1, 6, 5, 3)),
    ],
)
def test_images_are_read_as_the_evaluation_reads_them(prepare, dtype, shape, tmp_path):
    name = os.fsdecode(b"caf\xe9.png")  # A name that is no text in UTF-8.
    Image.fromarray(np.zeros((9, 7, 3), np.uint8)).save(tmp_path / name)
    run = saved_run(c.Data(prepare=prepare), {"prepared": {"image": {"shape": [4, 4, 3]}}})
    source = examples.open_examples(run, [str(tmp_path / name)])
    found = source.read(tf.constant([0], tf.int64))["image"]
    assert found.dtype == dtype and found.shape == shape and [*source.damaged()] == []


def table_of(tmp_path, rows, **columns):
    """The rows of a file, as of a run with these columns: (role, kind, values)."""
    pytest.importorskip("pandas")
    (tmp_path / "rows.csv").write_text(rows)
    columns = {
        name: {"role": role, "kind": kind} | ({"missing": 0.0} if values is None else {"values": values})
        for name, (role, kind, values) in columns.items()
    }
    return examples.read_table(saved_run(c.Data(), {"columns": columns}), "inputs", tmp_path / "rows.csv")


NUMBER, TARGET = ("input", "number", None), ("label", "number", None)


@pytest.mark.parametrize(
    ("values", "rows", "labels"),
    [
        (["1", "2"], "x,y\n0,1\n0,2\n0,\n", [0, 1, -1]),
        (["0", "1"], "x,y\n0,True\n0,False\n", [1, 0]),
        (["a", "b"], "x,y\n0,\n0,\n", None),
    ],
)
def test_labels_of_a_table_are_found_by_the_names_of_the_training(values, rows, labels, tmp_path):
    found = table_of(tmp_path, rows, x=NUMBER, y=("label", "class", values)).labels
    assert (found is None) if labels is None else found.tolist() == labels


def test_errors_of_predicted_numbers_are_of_the_rows_that_have_one(tmp_path):
    found = table_of(tmp_path, "x,y\n0,1.5\n0,\n0,4\n", x=NUMBER, y=TARGET).targets
    assert predict.errors(np.array([1.0, 9.0, 6.0]), found, "y").startswith("mean absolute error 1.25, root")
    assert table_of(tmp_path, "x\n0\n", x=NUMBER, y=TARGET).targets is None


@pytest.mark.parametrize("rows", ["grade\n1\nTRUE\n", "grade\n01\n02\n", 'grade\n1\n""\n02\n'])
def test_categories_of_a_table_are_the_texts_of_the_file(rows, tmp_path, capsys):
    """Of a file with digits only, or with a missing text, pandas makes numbers: 01 is 1 then, and 1 is 1.0."""
    values, written = ["01", "02", "1", "TRUE", "unknown"], rows.replace('"', "").split("\n")[1:-1]
    columns = {"grade": ("input", "category", values), "y": ("label", "number", None)}
    source = table_of(tmp_path, rows, **columns)
    found = source.read(tf.range(len(source), dtype=tf.int64))["inputs"].numpy()
    assert found.tolist() == [[float(value == text) for value in values] for text in written]
    assert "WARNING" not in capsys.readouterr().err
    table_of(tmp_path, "grade\n1\nBasel\n", **columns)
    assert re.search("grade .*: Basel", capsys.readouterr().err)


def test_files_in_folders_are_those_that_a_training_reads(tmp_path, capsys):
    """Also in links, none that is hidden."""
    for name in ("b/cat/2.PNG", "b/cat/._1.png", "b/.old/3.png", "b/u.webp", "t.csv", "x.npz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a").mkdir()
    for link in ("a/b", "b/cat/up"):
        (tmp_path / link).symlink_to(tmp_path / "b")
    assert examples.find([str(tmp_path / "a")]) == ("images", [tmp_path / "a" / "b" / "cat" / "2.PNG"])
    assert "not read: 1 with .webp" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for names, words in (
        (["empty"], "without images"),
        (["none.png"], "none.png"),
        (["t.csv", "x.npz"], r"\.csv, \.npz"),
    ):
        with pytest.raises(ValueError, match=words):
            examples.find([str(tmp_path / name) for name in names])


def test_an_array_is_found_by_the_name_of_the_input(tmp_path):
    np.savez(tmp_path / "two.npz", image=np.zeros((3, 2)), more=np.zeros(1))
    np.savez(tmp_path / "one.npz", pixels=np.zeros((3, 2), np.uint8))
    assert examples.read_array(tmp_path / "two.npz", "image").dtype == np.float32
    assert examples.read_array(tmp_path / "one.npz", "image").dtype == np.uint8


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: examples.read_array(path / "two.npz", "up"), "must have the array 'up', and has left, right"),
        (lambda path: examples.read_array(path / "x.png", "x"), r"x\.png cannot be read"),
        (lambda path: examples.read_array(path / "pickle.npz", "x"), r"pickle\.npz cannot be read"),
        (lambda path: table_of(path, "x\n", x=NUMBER, y=TARGET), "rows.csv' has no rows"),
        (lambda path: table_of(path, "x\n1.5\n\nmuch\n", x=NUMBER, y=TARGET), "'x' .*'much'"),
        (lambda path: of_file(path / "x.npz", (4,)), "x.npz has no examples"),
        (lambda path: of_file(path / "x.png", (4, 4, 3)), "x.png' cannot be read: Unknown image"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch, read, words):
    np.savez(tmp_path / "two.npz", left=np.zeros((3, 2)), right=np.zeros((3, 2)))
    np.savez(tmp_path / "x.npz", np.zeros((0, 4), np.float32))
    (tmp_path / "x.png").write_bytes(b"no image")
    (tmp_path / "pickle.npz").write_bytes(np.array([{}]).dumps())
    with pytest.raises(ValueError, match=words) as caught:
        read(tmp_path)
    assert "function_node" not in str(caught.value) and "[Op" not in str(caught.value)


def of_file(path, shape):
    """Predicts a file by a model of this input."""
    model = keras.Sequential([keras.Input(shape), keras.layers.Flatten()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfdist.tools.saved_runs.model.load", lambda *words: model)
        run = saved_run(c.Data(), {"classes": ["a", "b"], "prepared": {"image": {"shape": list(shape)}}})
        predict.outputs_of_files(run, strategy.connect(c.ClusterOptions(gpus=0)), [str(path)], "newest")


def test_a_model_in_mixed_precision_is_exported_in_float32(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_bfloat16")])
    monkeypatch.setattr("tfdist.tools.saved_runs.model.load", lambda *words: model)
    found = export.plain_model(saved_run(c.Data()), "newest")
    assert found(np.ones((1, 2), np.float32)).dtype == tf.float32
    np.testing.assert_array_equal(found.get_weights()[0], model.get_weights()[0])
    monkeypatch.setattr(export.saved_lib, "open_run", lambda workdir: saved_run(c.Data()))
    args = types.SimpleNamespace(run="runs/mine", out=tmp_path / "model", format="litert", checkpoint="newest")
    with pytest.raises(ValueError, match=r"model must end in \.tflite"):
        export.export(args)


def test_an_exported_model_keeps_what_its_layers_have_learned_from_the_data(monkeypatch):
    numbers, words = keras.Input((2,)), keras.Input((1,), dtype="string")
    normalized, lookup = keras.layers.Normalization(), keras.layers.StringLookup(output_mode="one_hot")
    normalized.adapt(np.array([[1.0, 20.0], [3.0, 60.0]]))
    lookup.adapt(np.array(["red", "blue", "red"]))
    model = keras.Model([numbers, words], keras.layers.Concatenate()([normalized(numbers), lookup(words)]))
    monkeypatch.setattr("tfdist.tools.saved_runs.model.load", lambda *words: model)
    found = export.plain_model(saved_run(c.Data()), "newest")
    inputs = [tf.constant([[3.0, 20.0]]), tf.constant([["red"]])]
    np.testing.assert_allclose(model(inputs), [[1.0, -1.0, 0.0, 1.0, 0.0]], atol=1e-6)
    np.testing.assert_array_equal(found(inputs), model(inputs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with images, a config and a finished run of it."""
    folder, random = tmp_path_factory.mktemp("mine"), np.random.RandomState(0)
    for split, count, side in (("train", 16, 6), ("test", 8, 6), ("../photos", 5, 9)):
        for label, name in enumerate(CLASSES):
            place = folder / "images" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                values = random.randint(0, 100, (side, side, 3)) + 150 * label
                Image.fromarray(values.astype(np.uint8)).save(place / f"{number}.png")
    (folder / "my_net.py").write_text(MODULE)
    (folder / "mine.py").write_text(CONFIG)
    assert "finished after step 20" in tfdist(folder, "train", "mine.py")
    return folder


def tfdist(folder, *words, code=0):
    """Runs a command in `folder`; returns what it printed."""
    done = launching.tfdist(*words, code=code, cwd=folder, start=forked.run, timeout=900)
    return done.stdout + done.stderr


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.workers
def test_a_run_is_evaluated_and_extended_by_its_workdir(folder):
    printed = tfdist(folder, "evaluate", "runs/mine", "--checkpoint=best")
    assert json.loads(printed.splitlines()[-1])["accuracy"] == 1.0
    printed = tfdist(folder, "train", "runs/mine", "--epochs=6")  # Of 4 steps; the config has 20 steps.
    assert "finished after step 24" in printed and "config.train.epochs: None was saved, now 6.0" in printed
    described = json.loads((folder / "runs" / "mine" / "environment.json").read_text())
    assert described["config_file"] == str(folder / "mine.py")


@pytest.mark.slow
def test_files_are_predicted_on_all_replicas_and_workers(folder):
    words = [sys.executable, "-m", "tfdist", "predict", "runs/mine", "photos", "--out=two.csv"]
    printed, _ = processes.at_once(
        lambda: tfdist(folder, "predict", "runs/mine", "photos", "--out=one.csv"),
        lambda: launching.run_all([words] * 2, topologies.environments(2), cwd=folder),
    )
    header, *rows = read_csv(folder / "one.csv")
    assert header == ["file", "class", "probability", "p(dark)", "p(light)"] and len(rows) == 10
    assert all(row[0].split("/")[1] == row[1] and float(row[2]) > 0.5 for row in rows)
    assert "10 examples: 5 dark, 5 light\naccuracy 1.0000: 10 of 10, by their labels" in printed
    several = read_csv(folder / "two.csv")
    assert [row[:2] for row in several] == [header[:2], *(row[:2] for row in rows)]
    numbers = [np.array(each, float) for each in ([row[2:] for row in rows], [row[2:] for row in several[1:]])]
    np.testing.assert_allclose(*numbers, atol=1e-6)


@pytest.mark.slow
def test_inspect_shows_the_wrong_examples(folder):
    printed = tfdist(folder, "inspect", "runs/mine", "--checkpoint=best")
    assert "accuracy 1.0000: 16 of 16 examples" in printed
    pytest.importorskip("matplotlib")
    copies = [folder / "images" / "test" / "light" / f"dark{number}.png" for number in range(5)]
    for number, path in enumerate(copies):
        path.write_bytes((folder / "images" / "test" / "dark" / f"{number}.png").read_bytes())
    printed = tfdist(folder, "inspect", "runs/mine")
    for path in copies:
        path.unlink()
    assert "16 of 21 examples" in printed and "dark (5)" in printed
    for name in ("confusion.png", "wrong.png"):
        with Image.open(folder / "runs/mine/inspect" / name) as image:
            assert min(image.size) > 300
    _, *rows = read_csv(folder / "runs/mine/inspect/wrong.csv")
    assert {row[1] for row in rows} == {"light"} and {row[0] for row in rows} == {*map(str, copies)}


def outputs_of_file(form, path, images):
    """The outputs of an exported model by the library that it is for."""
    if form == "tf_saved_model":
        loaded = tf.saved_model.load(str(path))  # Its variables live as long as this name.
        return loaded.serve(images).numpy()
    if form == "keras":
        return keras.models.load_model(path).predict(images, verbose=0)
    if form == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: images})[0]
    run = tf.lite.Interpreter(str(path)).get_signature_runner()
    (outputs,) = run(**dict.fromkeys(run.get_input_details(), images)).values()
    return outputs


@pytest.mark.workers
@pytest.mark.parametrize(
    ("form", "packages", "file"),
    [
        ("tf_saved_model", (), "savedmodel"),
        ("keras", (), "exported.keras"),
        slow("litert", (), "model.tflite"),
        ("onnx", ("onnx", "tf2onnx", "onnxruntime"), "model.onnx"),
    ],
)
def test_the_model_is_exported_and_gives_equal_outputs(folder, form, packages, file):
    for name in packages:
        pytest.importorskip(name)
    assert "float32 [n, 6, 6, 3]" in tfdist(folder, "export", "runs/mine", f"--format={form}")
    images = np.random.RandomState(0).uniform(0, 1, (3, 6, 6, 3)).astype(np.float32)
    expected = keras.models.load_model(folder / "runs/mine/model.keras").predict(images, verbose=0)
    np.testing.assert_allclose(outputs_of_file(form, folder / "runs/mine" / file, images), expected, atol=1e-5)


@pytest.mark.workers
def test_what_is_not_possible_is_said_before_tensorflow_starts(folder):
    (folder / "runs" / "script" / "fit1").mkdir(parents=True)
    (folder / "runs" / "script" / "fit1" / "config.json").write_text('{"model": {"compile": "x"}}')
    for words, says in (
        (["predict", "runs/script", "images"], "runs/script/fit1 is the workdir of a script"),
        (["export", "runs/mine", "--format=onx"], "--format: invalid choice: 'onx' (choose from "),
        (["predict", "images", "images"], "images has no run: it has no config.json"),
        (["predict", "runs/mine", "images", "--out=/dev/stdout"], "--out=/dev/stdout is not a file"),
    ):
        printed = tfdist(folder, *words, code=1)
        assert says in printed and "MirroredStrategy" not in printed
    if not importlib.util.find_spec("tf2onnx"):
        assert "pip install 'tfdist[export]'" in tfdist(folder, "export", "runs/mine", "--format=onnx", code=1)


@pytest.mark.slow
def test_rows_of_a_table_are_prepared_as_those_of_the_training(tmp_path):
    pytest.importorskip("pandas")
    rows = [f"{number % 7},{'red' if number % 2 else 'blue'},{'a' if number % 2 else 'b'}" for number in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["size,colour,kind", *rows]))
    (tmp_path / "new.csv").write_text("colour,size\nred,3\nblue,\n")
    (tmp_path / "bad.csv").write_text("colour\nred\n")
    tfdist(tmp_path, "new", "mine", "--table=rows.csv")
    tfdist(tmp_path, "train", "mine/mine.py", "--epochs=40", "--workdir=runs/rows")
    tfdist(tmp_path, "predict", "runs/rows", "new.csv", "--out=made/new_out.csv")
    assert [row[:2] for row in read_csv(tmp_path / "made/new_out.csv")] == [["row", "class"], ["0", "a"], ["1", "b"]]
    assert "accuracy 1.0000: 60 of 60, by their labels" in tfdist(tmp_path, "predict", "runs/rows", "rows.csv")
    assert "has no column 'size'" in tfdist(tmp_path, "predict", "runs/rows", "bad.csv", code=1)
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    wrong = int(splits.by_ratio("test", 60, test_fraction=0.2, source="")[0][0])
    right = lines[wrong + 1][-1]
    lines[wrong + 1] = lines[wrong + 1][:-1] + ("a" if right == "b" else "b")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    tfdist(tmp_path, "inspect", "runs/rows")
    found = read_csv(tmp_path / "runs/rows/inspect/wrong.csv")[1:]
    assert [(row[0], row[2]) for row in found] == [(f"row {wrong}", right)]
