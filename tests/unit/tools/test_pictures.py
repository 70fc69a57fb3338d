"""The pictures of the tools: each is drawn from made-up numbers, and its SVG file has the texts that it should have."""

import dataclasses
import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from launching import REPOSITORY, worker_environment
from PIL import Image

from tests.benchmark import ratios
from tfdist.configs.laboratory import stages, surface
from tfdist.tools import all_reduce, scaling_results
from tfdist.tools.pictures import curves, measured, scaling, scatter, style
from tfdist.tools.scaling_results import Point, Study

pytest.importorskip("matplotlib")
RANDOM = np.random.default_rng(0)


def texts(path, draw):
    """Saves a picture, checks that it is not blank; returns the texts of the SVG file."""
    assert style.save(path, draw) == f"{path}.png, {path.name}.svg"
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    with Image.open(files[0]) as image:
        assert min(image.size) > 700 and round(image.info["dpi"][0]) == style.DPI
        assert len(image.convert("RGB").resize((400, 300)).getcolors(400 * 300)) > 20
    root = ElementTree.parse(files[1]).getroot()
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def write_run(workdir, *, loss, evaluated=True):
    """Writes a metrics.jsonl as a run does, with a last line that is not complete."""
    workdir.mkdir()
    lines = []
    for epoch in range(1, 6):
        record = {"kind": "train", "epoch": epoch, "loss": loss / epoch, "accuracy": 1 - 0.5 / epoch, "seconds": 1.0}
        record |= {"examples_per_second": 900.0 + epoch, "examples_per_second_per_replica": 450.0, "step": 10 * epoch}
        lines.append(record)
        if evaluated:
            lines.append({"kind": "evaluation", "epoch": epoch, "step": 10 * epoch, "loss": loss, "accuracy": 0.5})
    lines[0]["loss"] = None
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "train", "ep'
    (workdir / "metrics.jsonl").write_text(text)
    (workdir / "config.json").write_text(json.dumps({"model": {"target": "a:net"}, "data": {"batch_size": 64}}))
    return workdir


def a_study(name="net", factor=1.0):
    points = [
        Point(
            replicas=n,
            batch_size=64 * n,
            first_epoch_seconds=5.0,
            later_epoch_seconds=[factor * (4 / n + 0.2), factor * (4 / n + 0.4), factor * (4 / n + 0.3)],
            examples=1000,
            values={"loss": 0.5, "accuracy": 0.9},
            shares=[0.1, 0.8 if n > 1 else 0.9, 0.1 if n > 1 else 0.0],
        )
        for n in (1, 2, 4)
    ]
    return Study(name=name, described="batch 64, made up", points=points)


def test_curves_of_one_run_and_of_two(tmp_path):
    one, two = write_run(tmp_path / "one", loss=1.0), write_run(tmp_path / "two", loss=2.0, evaluated=False)
    runs = curves.read([one, two])
    assert [run.names() for run in runs] == [["loss", "accuracy", "examples_per_second"]] * 2
    found = texts(tmp_path / "both", lambda: curves.draw(runs))
    assert {"loss", "accuracy", "examples per second", "one", "two", "training", "evaluation", "epoch"} <= {*found}
    assert any("net, batch 64, 2 replicas" in text for text in found)
    with pytest.raises(ValueError, match=r"no value 'acc'; they have loss, accuracy, examples_per_second"):
        curves.draw(runs, ["acc"])
    assert {"run", "step", "loss", "evaluation loss", "accuracy", "evaluation accuracy"} == {*curves.compare(runs)[0]}
    (tmp_path / "two" / "config.json").write_text('{"model": {"target": "a:net"}, "learning_rate": {"peak": 0.1}}')
    header, rows = curves.compare(curves.read([one, two]))
    assert header[-2:] == ["data.batch_size", "learning_rate.peak"]
    assert [row[:2] + row[-2:] for row in rows] == [["one", 50, "64", None], ["two", 50, None, "0.1"]]
    assert rows[0][2:4] == [0.2, 1.0] and rows[1][3] is None
    found = texts(tmp_path / "differ", lambda: curves.draw(curves.read([one, two])))
    assert any("two: data.batch_size None, learning_rate.peak 0.1" in text for text in found)
    assert curves.labels([tmp_path / "a/x", tmp_path / "b/x"]) == ["a/x", "b/x"]


def test_values_by_learning_rate_end_where_the_loss_diverges(tmp_path):
    workdir = write_run(tmp_path / "range", loss=1.0)
    rates = np.geomspace(1e-6, 1.0, 61)
    losses = [2.0 + 0.1 * (step % 2) if step < 30 else 2.1 - step / 30 for step in range(50)]
    losses += [0.5, 1.0, 5.0, 0.5, *[None] * 7]  # From 5.0 on nothing is drawn.
    lines = [
        {"kind": "train", "step": step, "epoch": step / 10, "loss": loss, "accuracy": 0.5, "learning_rate": rate}
        for step, (rate, loss) in enumerate(zip(rates, losses, strict=True), 1)
    ]
    lines.append({"kind": "evaluation", "step": 61, "epoch": 6.1, "loss": 1.0, "accuracy": 0.5})
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss, accuracy = curves.draw(curves.read([workdir]), x="learning_rate").axes
    assert loss.get_xscale() == "log" and [axes.get_title() for axes in (loss, accuracy)] == ["loss", "accuracy"]
    for axes, line in itertools.product((loss, accuracy), (0, 1)):
        np.testing.assert_array_equal(axes.lines[line].get_xdata(), rates[:52])
    each, smooth = (line.get_ydata() for line in loss.lines)
    np.testing.assert_array_equal(each, losses[:52])
    assert smooth[0] == each[0] and smooth[51] == each[51] and smooth[40] == pytest.approx(np.mean(each[35:46]))
    command = [sys.executable, "-m", "tfdist", "plot", str(workdir), "--x=learning_rate"]
    subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), check=True, timeout=300)
    found = {element.text for element in ElementTree.parse(workdir / "curves.svg").iter() if element.text}
    assert {"learning rate", "loss", "accuracy"} <= found and not {"epoch", "evaluation"} & found


@pytest.mark.slow
def test_the_command_draws_the_runs_in_these_directories(tmp_path):
    def plot(*words, code=0):
        command = [sys.executable, "-m", "tfdist", "plot", *map(str, words)]
        done = subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    workdir = write_run(tmp_path / "one", loss=1.0)
    assert plot(workdir, "--values=loss", "--log").strip() == f"{workdir}/curves.png, curves.svg"
    assert (workdir / "curves.svg").stat().st_size > 1000
    table = plot(workdir, write_run(tmp_path / "other", loss=2.0), "--out", tmp_path / "both").splitlines()
    assert table[0].split()[:3] == ["run", "step", "loss"] and table[-1].endswith("both.png, both.svg")
    message = plot(tmp_path / "nowhere", code=1)
    assert f"There is no {tmp_path}/nowhere/metrics.jsonl: give the workdir of a run" in message
    assert "give the workdir of a run, such as runs/digits" in plot(code=1)


def test_without_matplotlib_the_command_fails_and_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None\nfrom tfdist import __main__\n__main__.main()"
    command = [sys.executable, "-c", program, "plot", str(write_run(tmp_path / "one", loss=1.0))]
    done = subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "pip install matplotlib" in done.stderr


@pytest.mark.slow
def test_results_that_a_course_prints_by_epoch_are_drawn_beside_a_run(tmp_path):
    runs = [*curves.read([write_run(tmp_path / "one", loss=2.0)]), *curves.read_published("bsc_resnet50v2")]
    found = texts(tmp_path / "curves", lambda: curves.draw(runs))
    assert {"one", *(f"page, {gpus}" for gpus in ("1 GPU", "2 GPUs", "4 GPUs"))} <= {*found}
    assert any(text.startswith("page: BSC CTE-POWER course") for text in found) and "net, batch 64" in str(found)
    header, rows = curves.compare(runs)
    assert rows[3][: header.index("loss") + 1] == [runs[3].label, 245, 1.3689]
    assert curves.read_published("cscs_inceptionv3") == []


@pytest.mark.slow
def test_scaling_of_several_studies_with_published_results(tmp_path):
    studies = [a_study(), a_study("larger net", 2.0), scaling_results.read_published("bsc_resnet50v2")]
    found = texts(tmp_path / "scaling", lambda: scaling.draw(studies))
    # Epochs of 1,000 and of 50,000 examples: 45 s are 0.9 s for 1,000.
    assert {"Time of 1,000 examples", "Throughput", "Speedup", "replicas", "ideal", "net", "larger net", "0.9"} <= {
        *found
    }
    assert any("NVIDIA V100 GPUs of 16 GB" in text for text in found)
    remainder = dataclasses.replace(studies[0].points[1], examples=960)
    alone = dataclasses.replace(studies[0], points=[studies[0].points[0], remainder])
    assert "Time of an epoch" in texts(tmp_path / "alone", lambda: scaling.draw([alone]))
    studies[0].points[1].shares.clear()
    found = texts(tmp_path / "details", lambda: scaling.draw_details(studies[:1]))
    assert "not measured in parts" in found
    assert {"input", "compute", "communication", "Loss after the same epochs", "Accuracy after the same epochs"} <= {
        *found
    }
    assert any("the speedup is 3.31 and not 4, mainly because of" in text for text in found)


def test_values_overlap_neither_each_other_nor_axes_or_curves():
    def two(*seconds):
        points = [
            Point(replicas=n, batch_size=8 * n, first_epoch_seconds=20.0, later_epoch_seconds=[time], examples=32)
            for n, time in zip((1, 2), seconds, strict=True)
        ]
        return Study(name="net", described="net, made up", points=points)

    def draw(*studies):
        figure = scaling.draw(studies)
        style.separate_values(figure)
        return figure

    published = scaling_results.read_published("cscs_inceptionv3")
    far_higher_on_more = draw(two(3.67, 2.23), published)
    caption = far_higher_on_more.get_supxlabel()
    assert caption.startswith("net, made up; 32 examples in an epoch.\nInceptionV3, Piz Daint")
    for figure, numbers in (
        (far_higher_on_more, [6, 2, 4]),
        (draw(two(2.0, 4.0)), [2, 2, 1]),
        (draw(two(2.0, 40.0), published), [2, 2, 4]),
    ):
        assert [len(axes.texts) for axes in figure.axes] == numbers
        for axes in figure.axes:
            boxes, frame = [text.get_window_extent() for text in axes.texts], axes.get_window_extent()
            for index, box in enumerate(boxes):
                assert frame.x0 < box.x0 and frame.y0 < box.y0 and box.count_overlaps(boxes[index + 1 :]) == 0
                for line in axes.lines:
                    points = axes.transData.transform(line.get_xydata())
                    fine = np.linspace(points[:-1], points[1:], 200).reshape(-1, 2)
                    assert box.count_contains(fine) == 0, axes.texts[index].get_text()


@pytest.mark.slow
def test_trajectories_with_start_minimum_and_colour_bar(tmp_path):
    x = RANDOM.uniform(-1, 1, 64)
    y = 2 * x + 0.5
    path = np.linspace([-1, 2], [2, 0.5], 20)
    np.testing.assert_allclose(
        surface.errors(x, y, np.array([1.0, 3.0]), np.array([-1.0, 0.5])),
        [[np.mean((m * x + n - y) ** 2) for m in (1.0, 3.0)] for n in (-1.0, 0.5)],
        atol=1e-12,
    )
    np.testing.assert_allclose(surface.minimum(x, y), [2, 0.5], atol=1e-12)
    trajectories = {(1, 1): path, (8, 1): path, (8, 2): path}
    found = texts(
        tmp_path / "trajectories", lambda: surface.draw(trajectories, x, y, caption="64 points", skipped="batch 1: no")
    )
    expected = {"batch of 1", "batch of 8", "1 replica", "2 replicas", "start", "minimum", "slope m", "intercept n"}
    assert expected <= {*found} and "mean squared error (logarithmic)" in found


@pytest.mark.slow
def test_stages_and_their_losses(tmp_path):
    x = RANDOM.uniform(-0.5, 0.5, 50)
    one = {"weights": np.linspace([0, 1], [2, 0], 31), "loss": np.linspace(1, 0.1, 30)}
    found = {name: [one, {**one, "weights": one["weights"] + 0.1}] for name in stages.TITLES}
    paths = {name: [each["weights"] for each in workers] for name, workers in found.items()}
    written = texts(tmp_path / "paths", lambda: stages.draw_paths(paths, (x, 2 * x), (2, 0), caption="made up"))
    assert {"worker 0", "worker 1", "true line", "slope", "offset", "mean squared error", *stages.TITLES.values()} <= {
        *written
    }
    written = texts(tmp_path / "fit", lambda: stages.draw_fit(found, (x, 2 * x), (2, 0), caption="made up"))
    assert {"points", "before training", "fitted: 2.00 x +0.00", "shard, worker 1"} <= {*written}


@pytest.mark.slow
def test_the_cost_of_an_all_reduce(tmp_path):
    ring = all_reduce.RingCostModel(latency=1e-4, bandwidth=1e9)
    rows = [(size, size, 1e3 * ring.seconds(size, 2) * 1.1, 0.0, 0.0) for size in (4, 1024, 2**19, 2**20)]
    found = texts(
        tmp_path / "ring",
        lambda: measured.draw_all_reduce(rows, lambda size: ring.seconds(size, 2), caption="x"),
    )
    assert {"measured", "formula of the ring", "1 MiB"} <= {*found} and "512 KiB" not in found


@pytest.mark.slow
def test_the_ratios_of_a_benchmark(tmp_path):
    rows = [
        {"title": title, "name": name, "ratio": ratio, "milliseconds": 3 * ratio}
        for title in ("MLP, 1 worker", "MLP, 2 workers", "ResNet-20, 1 worker")
        for name, ratio in (("floor", 0.9), ("Keras fit", 4.5), ("tfdist float32", 1.0))
    ]
    found = texts(tmp_path / "steps", lambda: ratios.draw_ratios(rows, caption="x"))
    assert {"MLP, 2 workers", "Keras fit", "tfdist float32", "4.50  (13.5 ms)"} <= {*found}


def test_equal_data_gives_equal_files(tmp_path):
    def draw():
        figure, (axes,) = style.figure("title", "caption", size=(5.0, 3.0))
        axes.plot([1, 2], [3, 4], **style.series(1))
        return figure

    for name in ("one", "two"):
        style.save(tmp_path / name, draw)
    for suffix in ("png", "svg"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_dollars_of_names_are_no_formulas(tmp_path):
    """Names such as <$50k and >=$50k were drawn in italics, and a picture with $\\x$ failed."""
    points = [scatter.Point(x=name, y=0.1, series=f"{name}$") for name in ("<$50k", "$\\x$")]
    found = texts(tmp_path / "names", lambda: scatter.draw(points, x="$x$", y="$y$", caption="of $1 and $2"))
    assert {"<$50k", "$\\x$", "<$50k$", "$x$", "$y$", "$y$ by $x$", "of $1 and $2"} <= set(found)
    runs = curves.read([write_run(tmp_path / "run", loss=1.0)])
    assert "$" not in "".join(texts(tmp_path / "log", lambda: curves.draw(runs, ["loss"], log=True)))


def test_the_colours_are_those_for_all_readers():
    assert len(style.COLORS) == len(style.MARKERS) == len({*style.COLORS}) == 7
    assert {style.series(index)["color"] for index in range(7)} == {*style.COLORS}


def test_plot_finds_the_runs_below_the_workdir_of_a_script(tmp_path):
    (tmp_path / "script").mkdir()
    for number in (1, 2):
        write_run(tmp_path / "script" / f"fit{number}", loss=2.0)
    command = [sys.executable, "-m", "tfdist", "plot", str(tmp_path / "script"), "--values=loss"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "fit2" in done.stdout and "curves.png" in done.stdout, done.stdout + done.stderr
