"""docs/path.md is the path of a run: what a step, a save, an evaluation and a stop enter is in the files it names."""

import json
import re
import sys

import processes
import pytest
import topologies
from launching import REPOSITORY

PAGE = REPOSITORY / "docs" / "path.md"
OPTIONS = [
    *("--config=configs/digits.py", "--config.train.epochs=1", "--config.train.call_seconds=1e-6"),
    *("--config.report.every.steps=1", "--config.evaluation.every.steps=4", "--config.checkpoint.every.steps=3"),
]


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


@pytest.mark.slow
def test_what_a_run_enters_is_on_the_page(tmp_path):
    _, named = named_files(PAGE.read_text())
    command = [sys.executable, "tests/support/traced_main.py", *OPTIONS, f"--workdir={tmp_path / 'run'}"]
    places = [
        environment | {"TRACED": str(tmp_path / f"{rank}.json"), "STOPS": str(1 - rank)}
        for rank, environment in enumerate(topologies.environments(2))
    ]
    codes, outputs = processes.run([command] * 2, places)
    assert codes == [75, 75], outputs
    entered: dict[str, set[str]] = {}
    for rank in range(2):
        for phase, found in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            entered.setdefault(phase, set()).update(file for file, _ in found)
    assert entered.keys() == {"step", "save", "evaluation", "stop"}
    assert {"training/loop.py", "training/execution.py", "cluster/cluster.py"} <= entered["step"]
    assert {"training/checkpointing.py", "checkpoint/format.py"} <= entered["save"] | entered["stop"]
    for phase, files in entered.items():
        unknown = [file for file in sorted(files) if not any(file.startswith(name) for name in named)]
        assert unknown == [], f"{phase}: docs/path.md names neither these files nor their directories"
