"""docs/path.md is the path of a run: it names files that exist, and none of a feature."""

import re

from launching import REPOSITORY

PAGE = REPOSITORY / "docs" / "path.md"


def named_files(page: str) -> tuple[list[str], list[str]]:
    """The files of the path, in order, and all that the page names: files, and directories, which end with a slash."""
    path = re.findall(r"^\| `([\w/]+\.py)` \|", page, re.MULTILINE)
    return path, [name for name in re.findall(r"`([\w/]+(?:\.py|/))`", page) if name != "tfdist/"]


def test_the_path_has_nineteen_files_that_name_no_feature():
    path, named = named_files(PAGE.read_text())
    sources = {name: (REPOSITORY / "tfdist" / name).read_text() for name in path}
    assert len(path) == 19
    assert [name for name in named if not (REPOSITORY / "tfdist" / name).exists()] == []
    features = {file.stem for file in (REPOSITORY / "tfdist" / "training" / "features").glob("*.py")} - {"__init__"}
    assert {"nonfinite", "replica_check", "callbacks", "batch_norm", "recompute", "virtual_replicas"} <= features
    imports = [
        (name, line)
        for name, text in sources.items()
        for line in re.findall(r"^\s*(?:from|import) tfdist\.training\.features.*$", text, re.MULTILINE)
    ]
    assert imports == []
