"""The pictures of the tools: each is drawn from made-up numbers, and its SVG file has the texts that it should have."""

import dataclasses
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from launching import REPOSITORY, worker_environment
from PIL import Image

from tfdist.configs.laboratory import stages, surface
from tfdist.tools import all_reduce, scaling_results
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import curves, measured, plot, scaling, style
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
    assert any("net, batch 64" in text for text in found)
    with pytest.raises(ValueError, match=r"no value 'acc'; they have loss, accuracy, examples_per_second"):
        curves.draw(runs, ["acc"])
    (tmp_path / "two" / "config.json").write_text('{"model": {"target": "a:net"}, "learning_rate": {"peak": 0.1}}')
    found = texts(tmp_path / "differ", lambda: curves.draw(curves.read([one, two])))
    assert any("two: data.batch_size None, learning_rate.peak 0.1" in text for text in found)
    assert run_state.labels([tmp_path / "a/x", tmp_path / "b/x"]) == ["a/x", "b/x"]


def test_values_by_another_column_of_the_reports(tmp_path):
    workdir = write_run(tmp_path / "range", loss=1.0)
    rates = np.geomspace(1e-6, 1.0, 61)
    losses = [*np.linspace(2, 0.1, 50), *[None] * 11]  # It has diverged.
    lines = [
        {"kind": "train", "step": step, "epoch": step / 10, "loss": loss, "accuracy": 0.5, "learning_rate": rate}
        for step, (rate, loss) in enumerate(zip(rates, losses, strict=True), 1)
    ]
    lines.append({"kind": "evaluation", "step": 61, "epoch": 6.1, "loss": 1.0, "accuracy": 0.5})
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss, accuracy, _ = curves.draw(curves.read([workdir]), x="learning_rate", log=True).axes
    assert loss.get_xscale() == "log" and loss.get_yscale() == "log" and accuracy.get_title() == "accuracy"
    np.testing.assert_array_equal(loss.lines[0].get_xdata(), rates[:50])
    np.testing.assert_array_equal(loss.lines[0].get_ydata(), losses[:50])
    command = [sys.executable, "-m", "tfdist", "plot", str(workdir), "--x=learning_rate"]
    subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), check=True, timeout=300)
    found = {element.text for element in ElementTree.parse(workdir / "curves.svg").iter() if element.text}
    assert {"learning rate", "loss", "accuracy"} <= found and "epoch" not in found


def test_a_value_of_runs_by_a_field_of_their_configs(tmp_path):
    """None is a place of the axis, a list, too; runs that differ only in the seed are one line."""
    for clip, seed, value in (("0.5", 0, 0.7), ("0.5", 1, 0.9), ("null", 0, 0.8), ("[1, 2]", 0, 0.6)):
        workdir = write_run(tmp_path / f"{clip}-{seed}", loss=1.0)
        (workdir / "config.json").write_text(f'{{"optimizer": {{"clip": {clip}}}, "seed": {seed}}}')
        with (workdir / "metrics.jsonl").open("a") as file:
            file.write("\n" + json.dumps({"kind": "evaluation", "step": 60, "epoch": 6, "loss": value / 10}) + "\n")
    rows, problems = run_state.read_all([tmp_path])
    (axes,) = plot.draw_by_field(rows, "optimizer.clip", "best.loss").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "[1, 2]", "None"] and not problems
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [0.08, 0.06, 0.08])
    command = [sys.executable, "-m", "tfdist", "plot", str(tmp_path), "--x=clip", "--y=best.loss"]
    subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), check=True, timeout=300)
    assert "best.loss by optimizer.clip" in (tmp_path / "curves.svg").read_text()


@pytest.mark.slow
def test_the_command_draws_the_runs_in_these_directories(tmp_path):
    def plot(*words, code=0):
        command = [sys.executable, "-m", "tfdist", "plot", *map(str, words)]
        done = subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    workdir = write_run(tmp_path / "one", loss=1.0)
    assert plot(workdir, "--y=loss", "--log").strip() == f"{workdir}/curves.png, curves.svg"
    assert (workdir / "curves.svg").stat().st_size > 1000
    assert plot(workdir, write_run(tmp_path / "other", loss=2.0), "--out", tmp_path / "both").endswith("both.svg\n")
    assert "--values was removed: tfdist plot has --y." in plot(workdir, "--values=loss", code=1)
    message = plot(tmp_path / "nowhere", code=1)
    assert f"There is no {tmp_path}/nowhere/metrics.jsonl: give the workdir of a run" in message
    assert "give the workdir of a run, such as runs/digits" in plot(code=1)


def test_without_matplotlib_the_command_fails_and_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None\nfrom tfdist import __main__\n__main__.main()"
    command = [sys.executable, "-c", program, "plot", str(write_run(tmp_path / "one", loss=1.0))]
    done = subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "pip install matplotlib" in done.stderr


def test_scaling_of_several_studies_with_published_results(tmp_path):
    studies = [a_study(), a_study("larger net", 2.0), scaling_results.read_published("bsc_resnet50v2")]
    found = texts(tmp_path / "scaling", lambda: scaling.draw(studies))
    expected = {"Time of an epoch", "Throughput", "Speedup", "replicas", "ideal", "net", "larger net", "communication"}
    assert expected <= {*found} and any("NVIDIA V100 GPUs of 16 GB" in text for text in found)
    assert any("the speedup is 3.31 and not 4, mainly because of" in text for text in found)
    studies[0].points[1].shares.clear()
    assert "not measured in parts" in texts(tmp_path / "without", lambda: scaling.draw(studies[:1]))


def test_times_throughput_and_the_sentence_have_one_speedup():
    """Of weak scaling, the epoch of more replicas has fewer examples: a remainder of the data is left out."""
    first, second, _ = a_study().points
    points = [first, dataclasses.replace(second, examples=900, shares=[0.1, 0.8, 0.1])]
    study = dataclasses.replace(a_study(), points=points)
    times, rates, speedups = scaling.draw([study]).axes
    heights = [sum(bar.get_height() for bar in times.patches if round(bar.get_x()) == place) for place in (0, 1)]
    reached = speedups.containers[0][0].get_ydata()[1]
    np.testing.assert_allclose([heights[0] / heights[1], np.divide(*rates.containers[0][0].get_ydata()[::-1])], reached)
    assert f"the speedup is {reached:.2f} and not 2" in scaling_results.reason(study)
    longer = float(re.search(r"takes (\S+) s longer", scaling_results.reason(study))[1])
    np.testing.assert_allclose(longer, heights[1] - heights[0] / 2, rtol=1e-2)


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

    def draw():
        figure, (axes,) = style.figure("$y$ by $x$", "of $1 and $2", size=(5.0, 3.0))
        axes.set_xticks([0, 1], ["<$50k", "$\\x$"])
        axes.set(xlabel="$x$")
        return figure

    found = texts(tmp_path / "names", draw)
    assert {"<$50k", "$\\x$", "$x$", "$y$ by $x$", "of $1 and $2"} <= set(found)
    runs = curves.read([write_run(tmp_path / "run", loss=1.0)])
    assert "$" not in "".join(texts(tmp_path / "log", lambda: curves.draw(runs, ["loss"], log=True)))


def test_the_colours_are_those_for_all_readers():
    assert len(style.COLORS) == len(style.MARKERS) == len({*style.COLORS}) == 7
    assert {style.series(index)["color"] for index in range(7)} == {*style.COLORS}


def test_plot_finds_the_runs_below_the_workdir_of_a_script(tmp_path):
    (tmp_path / "script").mkdir()
    for number in (1, 2):
        write_run(tmp_path / "script" / f"fit{number}", loss=2.0)
    command = [sys.executable, "-m", "tfdist", "plot", str(tmp_path / "script"), "--y=loss"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "curves.png" in done.stdout, done.stdout + done.stderr
    assert "fit2" in (tmp_path / "script" / "curves.svg").read_text()
