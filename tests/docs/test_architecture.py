"""docs/architecture.svg shows the packages and their imports; the page names what exists."""

import importlib.util
import pathlib
import re

import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawing():
    specification = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_source(drawing):
    drawn = drawing.draw(drawing.read_package(ROOT / "tfdist"))
    assert drawing.PICTURE.read_text() == drawn, "run python docs/draw_architecture.py"


def test_every_package_and_its_imports_are_in_the_picture(drawing):
    picture, architecture = drawing.PICTURE.read_text(), drawing.read_package(ROOT / "tfdist")
    shown = dict(re.findall(r"<!-- (\S+) imports (.*?) -->", picture))
    assert shown.keys() == drawing.PACKAGES.keys() | drawing.ENTRY_POINTS.keys()
    for name, packages in architecture.imports.items():
        assert shown[name] == (", ".join(sorted(packages)) or "no other package")
    titles = re.findall(r"<title>(\S+) -&gt; (\S+)</title>", picture)
    assert titles == architecture.drawn() and len(titles) >= len(drawing.PACKAGES)


def test_the_page_names_what_its_files_define():
    page = " ".join((ROOT / "docs" / "architecture.md").read_text().split())
    named = re.findall(r"`(\w+)`,? in `([\w/]+\.py)`", page)
    named += re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", page)
    missing = [
        f"{path} does not define {name}"
        for name, path in named
        if not re.search(rf"(def|class) {name}\b|^{name}(: .+)? = ", (ROOT / "tfdist" / path).read_text(), re.MULTILINE)
    ]
    assert len(named) > 15 and missing == []


def test_each_name_of_the_step_is_on_its_line():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)[^|]*\| `(\S+\.py):(\d+)` \|", page, re.MULTILINE)
    wrong = [
        f"{path}:{number} has no {name}"
        for name, path, number in rows
        if name.rpartition(".")[2] not in (ROOT / "tfdist" / path).read_text().splitlines()[int(number) - 1]
    ]
    assert len(rows) == 11 and wrong == []


def test_reading_finds_imports_in_functions_and_by_name(drawing, tmp_path):
    package = tmp_path / "mine"
    for name in ("low", "middle", "high"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    (package / "middle" / "a.py").write_text("def f():\n    from mine.low import b\n")
    (package / "high" / "a.py").write_text("import mine.low.b\nfrom mine import middle\n")
    (package / "main.py").write_text('import importlib\nimportlib.import_module("mine.high.a")\n')
    architecture = drawing.read_package(package)
    assert architecture.packages == {"low", "middle", "high", "main"}
    assert architecture.imports == {
        **{"low": frozenset(), "middle": frozenset({"low"}), "high": frozenset({"low", "middle"})},
        "main": frozenset({"high"}),
    }
    assert architecture.drawn() == [("high", "middle"), ("main", "high"), ("middle", "low")]


def test_packages_without_a_box_and_upward_arrows_are_found(drawing):
    architecture = drawing.read_package(ROOT / "tfdist")
    upwards = drawing.Architecture(architecture.packages, architecture.imports | {"config": frozenset({"training"})})
    with pytest.raises(ValueError, match="config -> training points upwards"):
        drawing.draw(upwards)
    attic = drawing.Architecture(architecture.packages | {"attic"}, architecture.imports | {"attic": frozenset()})
    with pytest.raises(ValueError, match=r"boxes and packages differ: \['attic'\]"):
        drawing.draw(attic)
