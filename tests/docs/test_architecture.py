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


@pytest.fixture(scope="module")
def architecture(drawing):
    return drawing.read_package(ROOT / "tfdist")


def test_the_picture_is_that_of_the_source(drawing, architecture):
    assert drawing.PICTURE.read_text() == drawing.draw(architecture), "run python docs/draw_architecture.py"


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


def test_packages_without_a_box_and_upward_arrows_are_found(drawing, architecture):
    upwards = drawing.Architecture(architecture.packages, architecture.imports | {"config": frozenset({"training"})})
    attic = drawing.Architecture(architecture.packages | {"attic"}, architecture.imports | {"attic": frozenset()})
    for wrong, words in ((upwards, "config -> training"), (attic, "'attic'")):
        with pytest.raises(ValueError, match=words):
            drawing.draw(wrong)
