"""The pictures of the tools: each is drawn from made-up numbers, and its SVG file has the texts that it should have."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from launching import REPOSITORY, tfdist
from PIL import Image
from test_many_runs import write_run

from tfdist.tools import scaling_results
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import curves, scaling, style
from tfdist.tools.scaling_results import Point, Study

pytest.importorskip("matplotlib")


def texts(path, draw):
    """Saves a picture, checks that it is not blank; returns the texts of the SVG file."""
    assert style.save(path, draw) == f"{path}.png, {path.name}.svg"
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    with Image.open(files[0]) as image:
        assert min(image.size) > 700 and round(image.info["dpi"][0]) == style.DPI
        assert len(image.convert("RGB").resize((400, 300)).getcolors(400 * 300)) > 20
    root = ElementTree.parse(files[1]).getroot()
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


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
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", evaluated=0)
    runs = curves.read([one, two])
    assert [run.names() for run in runs] == [["loss", "accuracy", "examples_per_second"]] * 2
    found = texts(tmp_path / "both", lambda: curves.draw(runs))
    assert {"loss", "accuracy", "examples per second", "one", "two", "training", "evaluation", "epoch"} <= {*found}
    assert any("net, batch 64" in text for text in found)
    with pytest.raises(ValueError, match=r"no value 'acc'; they have loss, accuracy, examples_per_second"):
        curves.draw(runs, ["acc"])
    three = write_run(tmp_path / "three", learning_rate__peak=0.1, seed=3)
    found = texts(tmp_path / "differ", lambda: curves.draw(curves.read([one, three])))
    assert any("three: seed 3, learning_rate.peak 0.1" in text for text in found)
    assert run_state.labels([tmp_path / "a/x", tmp_path / "b/x"]) == ["a/x", "b/x"]


def test_values_by_another_column_of_the_reports(tmp_path):
    workdir = write_run(tmp_path / "range")
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


@pytest.mark.slow
def test_the_command_draws_the_runs_in_these_directories(tmp_path):
    """Of a folder, the runs below it, as those of a script; without matplotlib it says what to install."""

    def plot(*words, code=0, **variables):
        done = tfdist("plot", *words, code=code, **variables)
        return done.stderr if code else done.stdout

    for number in (1, 2):
        write_run(tmp_path / "script" / f"fit{number}")
    assert plot(tmp_path / "script", "--y=loss", "--log").strip() == f"{tmp_path}/script/curves.png, curves.svg"
    assert "fit2" in (tmp_path / "script" / "curves.svg").read_text()
    assert "the runs have no column 'batch_size'" in plot(tmp_path / "script", "--x=batch_size", code=1)
    assert "give the workdir of a run" in plot(tmp_path / "nowhere", code=1)
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "matplotlib.py").write_text("raise ModuleNotFoundError(name='matplotlib')")
    assert "pip install matplotlib" in plot(tmp_path / "script", PYTHONPATH=str(tmp_path / "hides"), code=1)


@pytest.mark.slow
def test_scaling_of_several_studies_with_published_results(tmp_path):
    studies = [
        a_study(),
        a_study("larger net", 2.0),
        scaling_results.read(REPOSITORY / "configs/courses/published/bsc_resnet50v2"),
    ]
    found = texts(tmp_path / "scaling", lambda: scaling.draw(studies))
    expected = {"Time of an epoch", "Throughput", "Speedup", "replicas", "ideal", "net", "larger net", "communication"}
    assert expected <= {*found} and any("NVIDIA V100 GPUs of 16 GB" in text for text in found)
    assert any("the speedup is 3.31 and not 4, mainly because of" in text for text in found)
    studies[0].points[1].shares.clear()
    assert "not measured in parts" in texts(tmp_path / "without", lambda: scaling.draw(studies[:1]))


def test_dollars_of_names_are_no_formulas(tmp_path):
    """Names such as <$50k and >=$50k were drawn in italics, and a picture with $\\x$ failed."""

    def draw():
        figure, (axes,) = style.figure("$y$ by $x$", "of $1 and $2", size=(5.0, 3.0))
        axes.set_xticks([0, 1], ["<$50k", "$\\x$"])
        axes.set(xlabel="$x$")
        return figure

    found = texts(tmp_path / "names", draw)
    assert {"<$50k", "$\\x$", "$x$", "$y$ by $x$", "of $1 and $2"} <= set(found)
    runs = curves.read([write_run(tmp_path / "run")])
    assert "$" not in "".join(texts(tmp_path / "log", lambda: curves.draw(runs, ["loss"], log=True)))
