"""The commands that compare trainings: scaling and trajectories, on real trainings of the line; and their tables."""

import json

import forked
import numpy as np
import pytest
from launching import REPOSITORY, csv_rows, tfdist
from PIL import Image

from tfdist.configs.laboratory import stages
from tfdist.tools import child_runs, scaling, tables
from tfdist.tools import scaling_results as results
from tfdist.tools.scaling_results import Point, Study


def study(tool, *options, code=0):
    """Runs a command, and returns what it wrote."""
    done = tfdist(tool, "--config=configs/line.py", *options, code=code, start=forked.run)
    return done.stdout if code == 0 else done.stderr


def size_of_picture(path):
    """(width, height) of a PNG file in pixels."""
    with Image.open(path) as image:
        return image.size


@pytest.mark.slow
def test_scaling_trains_each_number_of_replicas_once(tmp_path):
    options = ["--epochs=3", f"--workdir={tmp_path}", "--config.learning_rate.peak=0.05"]
    # There is no such value without evaluations.
    options.append("--config.callbacks=[{'target': 'keras.callbacks:EarlyStopping', 'monitor': 'val_loss'}]")
    study("scaling", "--replicas=1,2", *options)
    rows = csv_rows(tmp_path / "scaling.csv")
    assert [(row["replicas"], row["batch_size"]) for row in rows] == [("1", "8"), ("2", "16")]
    assert rows[0]["speedup"] == rows[0]["efficiency"] == "1.0"
    for row, steps in zip(rows, (8, 4), strict=True):
        lines = child_runs.reports(tmp_path / f"weak-{row['replicas']}")
        assert [line["step"] for line in lines] == [steps, 2 * steps, 3 * steps]
        assert float(row["first_epoch_seconds"]) == round(lines[0]["seconds"], 5)
        assert float(row["epoch_seconds"]) == round(np.mean([line["seconds"] for line in lines[1:]]), 5)
        assert "worker 0 of 2" in (tmp_path / "weak-2.log").read_text()
    assert {"loss", "m", "n"} <= rows[0].keys() and float(rows[1]["communication_seconds"]) > 0
    assert [point.replicas for point in results.read(tmp_path).points] == [1, 2]
    pytest.importorskip("matplotlib")
    assert min(size_of_picture(tmp_path / "scaling.png")) > 300


@pytest.mark.slow
def test_trajectories_of_one_and_two_replicas_are_equal(tmp_path):
    words = ["--config.train.steps=20", "--batches=1,8", "--replicas=1,2", "--by=devices", f"--workdir={tmp_path}"]
    assert "batch 1 is not divisible by 2 replicas: skipped" in study("trajectories", *words)
    paths = {}
    for row in csv_rows(tmp_path / "trajectories.csv"):
        paths.setdefault((row["batch_size"], row["replicas"]), []).append([float(row["m"]), float(row["n"])])
    assert {key: len(path) for key, path in paths.items()} == {("1", "1"): 20, ("8", "1"): 20, ("8", "2"): 20}
    small, one, two = (np.array(paths[key]) for key in (("1", "1"), ("8", "1"), ("8", "2")))
    np.testing.assert_array_equal(one[0], [-1.0, 2.0])
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.abs(small - one).max() > 0.05
    assert np.abs(one[-1] - [2.0, 0.5]).max() < np.abs(one[0] - [2.0, 0.5]).max() / 2
    pytest.importorskip("matplotlib")
    assert min(size_of_picture(tmp_path / "trajectories.png")) > 300


@pytest.mark.slow
def test_the_command_trains_with_k_times_batch_and_rate(tmp_path):
    values = {"data.batch_size": 8, "learning_rate.peak": 0.01, "train.steps": 16, "train.epochs": "none"}
    values |= {"learning_rate.warmup_epochs": 0, "learning_rate.scaling": "none"}
    words = [f"--config.{name}={value}" for name, value in values.items()]
    study("trajectories", "--linear_scaling=4", *words, "--by=devices", f"--workdir={tmp_path}")
    one, four = csv_rows(tmp_path / "linear_scaling.csv")
    assert float(one["apart_after_them"]) == 0 and (four["batch_size"], four["rate"]) == ("32", "0.04")
    # The rate and the examples are right only if the step of 32 is near the four steps of 8.
    assert 0 < float(four["apart_after_them"]) < 0.1 * float(four["moved_by_k_steps"])


@pytest.mark.slow
def test_the_stages_of_the_laboratory_on_two_workers(tmp_path):
    options = ["--config.train.steps=20", "--config.data.batch_size=64", f"--workdir={tmp_path}"]
    assert "the trajectory differs by" in study("trajectories", "--stages", *options)
    ways = {}
    for row in csv_rows(tmp_path / "stages.csv"):
        ways.setdefault((row["stage"], row["worker"]), []).append([float(row["slope"]), float(row["intercept"])])
    ways = {key: np.array(way) for key, way in ways.items()}
    assert all(len(ways[name, rank]) == 20 for name in stages.TITLES for rank in "01")
    apart = {name: np.abs(ways[name, "0"] - ways[name, "1"]).max(axis=1) for name in stages.TITLES}
    assert apart["alone"][0] > 0.1 and apart["broadcast"][0] == 0 and apart["broadcast"][-1] > 1e-3
    assert apart["average"].max() == apart["shard"].max() == 0
    assert np.abs(ways["average", "0"] - ways["shard", "0"]).max() > 1e-3
    with np.load(tmp_path / "points.npz") as points:
        assert len(points["x"]) == 128
        x, y = points["x"][:64], points["y"][:64]
    weights = ways["shard", "0"][0]
    for step in range(20):  # Of one process with all points.
        np.testing.assert_allclose(ways["shard", "1"][step], weights, atol=1e-12)
        error = weights[0] * x + weights[1] - y
        weights = weights - 0.1 * np.array([np.mean(2 * error * x), np.mean(2 * error)])
    pytest.importorskip("matplotlib")
    assert all(min(size_of_picture(tmp_path / f"{name}.png")) > 300 for name in ("stages", "stages-loss"))
    message = study("trajectories", "--stages", "--config.data.batch_size=63", f"--workdir={tmp_path}", code=1)
    assert "steps 60, batch 63" in message


@pytest.mark.slow
def test_failed_training_is_reported_with_the_end_of_its_log(tmp_path):
    error = study("scaling", "--replicas=1", f"--workdir={tmp_path}", "--config.data.source.noise=lots", code=1)
    assert "--config.data.source.noise" in error
    error = study("scaling", "--replicas=1", f"--workdir={tmp_path}", "--config.data.batch_size=100", code=1)
    assert "The training on 1 replica(s) exited with code 1; the end of" in error
    assert "config.data.batch_size=100 is more than the 64 examples" in error
    assert "--replicas: must be whole numbers" in study("scaling", "--replicas=1,x", code=1)
    assert "--by=slurm starts steps with srun" in study("scaling", "--by=slurm", code=1)


def test_backend_is_slurm_within_an_allocation():
    assert child_runs.choose_backend("auto", {}) == "processes"
    assert child_runs.choose_backend("auto", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) == "slurm"
    assert child_runs.choose_backend("devices", {"SLURM_JOB_ID": "7"}) == "devices"
    ranks = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    ranks |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    with pytest.raises(ValueError, match="already process 1 of 2"):
        child_runs.choose_backend("auto", ranks)


def test_speedup_is_against_the_first_and_its_replicas():
    def point(n, seconds, examples=1600):
        values = {"first_epoch_seconds": 9.0, "values": {"loss": 0.5 / n}, "shares": [0.25, 0.75 - 0.1 * n, 0.1 * n]}
        return Point(replicas=n, batch_size=8 * n, later_epoch_seconds=seconds, examples=examples, **values)

    def study(*points):
        return Study(name="net", described="", points=list(points))

    first, second = point(2, [4.0, 5.0, 3.0]), point(4, [2.5, 2.5])
    assert scaling.rows(study(first, second)) == (
        ["loss"],
        [
            (2, 16, 9.0, 4.0, 400.0, 2.0, 1.0, 1.0, 2.2, 0.8, 0.25),
            (4, 32, 9.0, 2.5, 640.0, 3.2, 0.8, 0.625, 0.875, 1.0, 0.125),
        ],
    )
    # An epoch of fewer examples is shorter, and no faster: the remainder of larger batches is left out.
    less = study(first, point(4, [2.0], examples=1280))
    assert (less.speedups()[1], less.seconds(less.points[1])) == (3.2, 2.5)
    reason = results.reason(study(first, second))
    assert reason == results.reason(less) and "the speedup is 3.20 and not 4, mainly because of communication" in reason
    assert "(communication +0.6 s, input +0.125 s, compute -0.225 s)" in reason
    assert "4.00: at least linear" in results.reason(study(first, point(4, [2.0])))
    assert results.reason(study(first)) == ""


def test_study_is_read_as_written(tmp_path):
    study = results.read(REPOSITORY / "configs/courses/published/bsc_resnet50v2")
    assert [round(value, 2) for value in study.speedups()] == [1.0, 1.88, 3.75] and study.ideal_seconds(4) == 11.25
    results.write(tmp_path, study)
    of_another_release = json.loads((tmp_path / results.FILE).read_text())
    of_another_release["points"][0]["more"] = 1.0
    (tmp_path / results.FILE).write_text(json.dumps(of_another_release))
    assert results.read(tmp_path) == study
    (tmp_path / results.FILE).write_text('{"points": [{}]}')
    with pytest.raises(ValueError, match="damaged"):
        results.read(tmp_path)
    # Published as images per second, and without losses: the times are those of epochs of 12,800 images.
    points = results.read(REPOSITORY / "configs/courses/published/cscs_inceptionv3").points
    np.testing.assert_allclose([point.examples_per_second for point in points], [138.23, 264.57, 523.38, 1018.18], 1e-4)
    assert not any(point.values for point in points)


def test_tables_align_columns(tmp_path):
    rows = [("a", 1, 0.123456), ("bb", 20000, None)]
    assert tables.text(("name", "n", "x"), rows).splitlines() == [
        *("name       n       x", "----  ------  ------", "a          1  0.1235", "bb    20,000       -"),
    ]
    tables.write_csv(tmp_path / "t.csv", ("name", "n", "x"), rows)
    assert (tmp_path / "t.csv").read_text() == "name,n,x\na,1,0.123456\nbb,20000,\n"
    assert tables.text(("name",), [("a\nb",)]).splitlines()[2:] == ["a\\nb"]


def test_a_table_goes_through_a_link(tmp_path):
    link, folder = tmp_path / "link.csv", tmp_path / "folder"
    folder.mkdir()
    link.symlink_to(folder / "t.csv")
    tables.write_csv(link, ("a\udce9",), [(1,)])
    assert link.is_symlink() and (folder / "t.csv").read_bytes() == b"a\xe9\n1\n"
