"""`tfdist compare`: what differs between runs, its pictures and its page, which a browser shows."""

import html.parser
import json
import subprocess
import sys

import browser
import pytest
from test_many_runs import write_run

from tfdist.tools.many_runs import compare as compare_lib
from tfdist.tools.many_runs import differences, run_state
from tfdist.tools.pictures import curves, scatter

pytest.importorskip("matplotlib")
VERSIONS = {"tfdist": "0.1.0", "keras": "3.15.1"}


def describe(workdir, *, keras="3.15.1", commit="a" * 40, changed=False, host="one", workers=1):
    """Writes environment.json and data.json, as a run does."""
    git, versions = {"commit": commit, "changed": changed}, VERSIONS | {"keras": keras}
    roster = [f"{workers} workers: host {host}, pid {id(workdir)}, 1 CPU each"]
    values = {"git": git, "versions": versions, "host": host, "workers": roster, "python": "3.11.7"}
    (workdir / "environment.json").write_text(json.dumps(values))
    (workdir / "data.json").write_text(json.dumps({"examples": "digits: 1442 examples"}))
    return workdir


def hash_states(workdir, hashes, function="farmhash64"):
    """Adds (step, hash of the state) to metrics.jsonl, as a run does."""
    lines = [{"kind": "state", "step": step, "hash": one, "function": function} for step, one in hashes]
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text().rpartition("\n")[0] + "\n" + "".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def compare(*arguments, cwd):
    """Runs `tfdist compare`; returns what it printed."""
    command = [sys.executable, "-m", "tfdist", "compare", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_what_differs_is_shown(tmp_path):
    one = describe(write_run(tmp_path / "one", learning_rate__peak=0.1, cluster__port_base=1))
    two = describe(
        write_run(tmp_path / "two", learning_rate__peak=0.2, cluster__port_base=2), keras="3.14.0", workers=2
    )
    assert differences.fields([differences.read_config(path) for path in (one, two)]) == [
        {"learning_rate.peak": 0.1},
        {"learning_rate.peak": 0.2},
    ]
    found = {name: values for name, values in differences.aspects([one, two]).items() if len({*values}) > 1}
    assert found == {"keras": ["3.15.1", "3.14.0"], "topology": ["1 workers: 1 CPU each", "2 workers: 1 CPU each"]}
    assert differences.in_words({"a.b": 1, "c": None, "d": 2}, 2) == ["a.b 1", "c None", "and 1 more fields"]


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            [(0, "a"), (40, "b"), (45, "c")],
            [(0, "a"), (40, "b"), (45, "d")],
            "equal until step 40, different at step 45.",
        ),
        ([(0, "a"), (5, "b"), (9, "c")], [(0, "a"), (9, "d"), (12, "e")], "equal until step 0, different at step 9."),
        (
            [(0, "a"), (9, "b")],
            [(0, "c"), (9, "b")],
            "different at step 0, the first after which all runs have a hash.",
        ),
        (
            [(0, "a"), (40, "b"), (45, "c")],
            [(0, "a"), (40, "b")],
            "equal until step 40, the last of 2 after which all runs have a hash.",
        ),
        # An evaluation has changed the state, and only one of them has recorded it before and after.
        (
            [(0, "a"), (9, "b")],
            [(0, "a"), (9, "x"), (9, "b")],
            "equal until step 9, the last of 2 after which all runs have a hash.",
        ),
        ([(4, "a")], [(5, "a")], "not compared, there is no step after which all runs have a hash."),
        ([(4, "a")], [], "not compared, no hashes in metrics.jsonl of two."),
        ([], [], "not compared, no hashes in metrics.jsonl of one, two."),
    ],
)
def test_the_first_state_that_differs_is_named(tmp_path, first, second, sentence):
    names = ["one", "two"]
    runs = [hash_states(write_run(tmp_path / name), one) for name, one in zip(names, (first, second), strict=True)]
    assert differences.states(runs, names) == f"State: {sentence}"


def test_states_of_three_runs_and_of_other_functions(tmp_path):
    runs = [
        hash_states(write_run(tmp_path / name), [(0, "a"), (5, last)])
        for name, last in (("one", "b"), ("two", "b"), ("three", "c"))
    ]
    assert differences.states(runs, ["one", "two", "three"]) == "State: equal until step 0, different at step 5."
    on_gpu = hash_states(write_run(tmp_path / "gpu"), [(0, "z")], "multiply64")
    assert differences.states([runs[0], on_gpu], ["one", "gpu"]) == (
        "State: not compared, the hashes are of different functions: farmhash64, multiply64."
    )


def test_code_and_machines_that_differ_are_named(tmp_path):
    runs = [describe(write_run(tmp_path / name)) for name in ("one", "two")]
    facts = {
        "git": {"commit": "a" * 40, "changed": True, "diff": "12345678"},
        "code": {"my_lab.py": "aa", "other.py": "cc", "tfdist": "dd"},
        "processor": "P",
        "threads": {"cores": 2, "in an op": 0},
        "gpu": {"driver": "580.1"},
    }
    changes = {
        "git": {"commit": "a" * 40, "changed": True, "diff": "90abcdef"},
        "code": {"my_lab.py": "bb", "other.py": "cc", "tfdist": "dd"},
        "processor": "Q",
        "threads": {"cores": 2, "in an op": 1},
        "gpu": {"driver": "580.2"},
    }
    expected = {
        "code": ["commit aaaaaaaaaa, changed 12345678", "commit aaaaaaaaaa, changed 90abcdef"],
        "code of my_lab.py": ["aa", "bb"],
        "processor": ["P", "Q"],
        "threads: in an op": ["0", "1"],
        "GPU: driver": ["580.1", "580.2"],
    }
    for other in (changes, facts):
        for run, more in zip(runs, (facts, other), strict=True):
            path = run / "environment.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | more))
        found = differences.aspects(runs)
        different = {name: values for name, values in found.items() if len({*values}) > 1}
        assert different == (expected if other is changes else {})
    assert found["imported code"] == ["equal", "equal"]
    (runs[1] / "environment.json").unlink()  # No file of one of them is known.
    assert not any("of my_lab" in name or name == "imported code" for name in differences.aspects(runs))


@pytest.mark.slow
def test_fields_that_are_lists_have_a_picture_too(tmp_path):
    for name, crop in (("one", [4, 4]), ("two", [6, 6])):
        describe(write_run(tmp_path / name, data__prepare={"target": "x:y", "crop": crop}))
    assert "scatter.png" in compare("one", "two", "--out=both", cwd=tmp_path)


def test_none_is_a_place_of_the_axis(tmp_path):
    clips = (0.5, None, 1.0)
    runs = [run_state.read(write_run(tmp_path / f"{clip}", optimizer__clip=clip)) for clip in clips]
    different = differences.fields([dict(run.config) for run in runs])
    points, without = compare_lib._points(runs, different, "optimizer.clip", "best.accuracy")
    assert [point.x for point in points] == [0.5, None, 1.0] and without == []
    axes = scatter.draw(points, x="clip", y="accuracy", caption="").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "None", "1.0"]


def test_captions_say_what_differs(tmp_path):
    one, two = write_run(tmp_path / "one", seed=1), write_run(tmp_path / "two", seed=2)
    figure = curves.draw(curves.read([one, two]))
    assert figure.get_supxlabel() == "one: seed 1\ntwo: seed 2"
    again = write_run(tmp_path / "again", seed=1)
    assert curves.draw(curves.read([one, again])).get_supxlabel() == (
        "net, batch 64, 2 replicas; no field of their configs differs"
    )
    assert curves.draw(curves.read([one])).get_supxlabel() == "net, batch 64, 2 replicas"


class Page(html.parser.HTMLParser):
    """The tags and the sources of the pictures of a page."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.sources = [], []
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]


def a_sweep(folder):
    """Six runs: three learning rates with two seeds each."""
    for rate in (0.01, 0.1, 1.0):
        for seed in (0, 1):
            workdir = write_run(folder / f"peak={rate}-seed={seed}", learning_rate__peak=rate, seed=seed, finished=True)
            describe(workdir, changed=True)
    return folder


@pytest.mark.slow
def test_the_command_writes_a_page_of_its_own(tmp_path):
    a_sweep(tmp_path / "lr")
    (write_run(tmp_path / "lr" / "half", model__target="a:<b>", seed=5) / "metrics.jsonl").unlink()
    output = compare("lr", "--y=accuracy", cwd=tmp_path)
    assert "learning_rate.peak" in output and "data.batch_size" not in output
    assert "Equal: " not in output  # The run without environment.json has no versions.
    assert output.endswith("wrote lr/curves.png, lr/scatter.png, lr/compare.html\n")
    page = Page((tmp_path / "lr" / "compare.html").read_text())
    assert len(page.sources) == 2 and all(each.startswith("data:image/png;base64,") for each in page.sources)
    assert "script" not in page.tags and page.tags.count("table") == 3
    texts = (tmp_path / "lr" / "scatter.svg").read_text()
    assert "best.accuracy by learning_rate.peak" in texts and "band: smallest to largest" in texts and "half" in texts
    for seed in (0, 1):
        hash_states(tmp_path / "lr" / f"peak=0.1-seed={seed}", [(0, "a"), (10, f"{seed}")])
    one = compare("lr/peak=0.1-seed=0", "lr/peak=0.1-seed=1", "--out=both", cwd=tmp_path)
    assert "\n\nState: equal until step 0, different at step 10.\n" in one
    assert "State: equal until step 0" in (tmp_path / "both" / "compare.html").read_text()
    assert "seed" in one and "learning_rate.peak" not in one and "were not committed" in one
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
        *("compare.html", "curves.png", "curves.svg", "scatter.png", "scatter.svg"),
    ]


@pytest.mark.slow
def test_a_browser_shows_the_page(tmp_path):
    if reason := browser.missing():
        pytest.skip(reason)
    a_sweep(tmp_path / "lr")
    compare("lr", cwd=tmp_path)
    with browser.opened(tmp_path) as window:
        address = f"file://{tmp_path / 'lr' / 'compare.html'}"
        text = window.show(address, "Comparison of runs", "Fields that differ", "State and metrics", "Curves")
        assert "peak=0.01-seed=1" in text and "best.accuracy by learning_rate.peak" in text
        sizes = window.run("return [...document.images].map(one => [one.complete, one.naturalWidth, one.width])")
        assert len(sizes) == 2 and all(
            complete and natural > 1000 and shown > 300 for complete, natural, shown in sizes
        )
        assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
        window.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 20_000
