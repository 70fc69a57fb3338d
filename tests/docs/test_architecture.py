"""docs/architecture.svg shows the packages and their imports; the page names what exists."""

import pathlib
import re
import runpy

import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parents[2]


def test_the_picture_is_that_of_the_source():
    drawing = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
    drawn = drawing["draw"](drawing["read_package"](ROOT / "tfdist"))
    assert drawing["PICTURE"].read_text() == drawn, "run python docs/draw_architecture.py"


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
