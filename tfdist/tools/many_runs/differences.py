"""In what runs differ: fields of their configs, states, code, versions, data, machines. Imports no TensorFlow."""

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory
from tfdist.config import diff, text
from tfdist.report import files, metrics_file, run_info

# What no two runs share, in the roster of the workers.
_OF_ONE_RUN = re.compile(r"host \S+, |pid \d+, ")
# How metrics.jsonl begins the record of a hash of the state.
_STATE = b'{"kind": "state"'
# Runs that are named in a sentence.
_MAX_NAMED = 5


def fields(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each config (dotted names), the fields in which these configs differ, in their order.

    Fields of config.cluster, which describe connections, are left out. A field that a config lacks is None.
    """
    names = dict.fromkeys(name for one in configs for name in one if not name.startswith("cluster."))
    different = [name for name in names if any(one.get(name) != configs[0].get(name) for one in configs)]
    return [{name: one.get(name) for name in different} for one in configs]


def read_config(workdir: Path) -> dict[str, Any]:
    """Returns the config of a run by dotted names; {} if it has none; raises ValueError if config.json is damaged."""
    return dict(diff.flatten(run_info.read_config(workdir) or {}))


def in_words(values: dict[str, Any], most: int) -> list[str]:
    """Returns fields as "learning_rate.peak 0.1", at most so many, and how many more there are."""
    words = [f"{name} {value}" for name, value in list(values.items())[:most]]
    return [*words, *([f"and {len(values) - most} more fields"] if len(values) > most else [])]


def states(workdirs: Sequence[Path], names: Sequence[str]) -> str:
    """Returns a sentence about the first step after which the states of the runs differ, by their hashes."""
    # Of each run, step -> hashes: an evaluation or a restored checkpoint may change a state.
    hashes: list[dict[int, set[str]]] = []
    functions: set[str] = set()
    for workdir in workdirs:
        hashes.append({})
        for line in (files.read_file(workdir / metrics_file.METRICS) or b"").splitlines(keepends=True):
            record = metrics_file.parse_line(line) if line.startswith(_STATE) else None
            if record is not None:
                hashes[-1].setdefault(record["step"], set()).add(record["hash"])
                functions.add(record["function"])
    without = [name for name, of_run in zip(names, hashes, strict=True) if not of_run]
    if without:
        return f"State: not compared, no hashes in metrics.jsonl of {text.list_names(without, _MAX_NAMED)}."
    if len(functions) > 1:
        return f"State: not compared, the hashes are of different functions: {', '.join(sorted(functions))}."
    common = sorted(set.intersection(*map(set, hashes)))
    if not common:
        return "State: not compared, there is no step after which all runs have a hash."
    different = [step for step in common if not set.intersection(*(of_run[step] for of_run in hashes))]
    if not different:
        return f"State: equal until step {common[-1]}, the last of {len(common)} after which all runs have a hash."
    if different[0] == common[0]:
        return f"State: different at step {common[0]}, the first after which all runs have a hash."
    before = common[common.index(different[0]) - 1]
    return f"State: equal until step {before}, different at step {different[0]}."


def aspects(workdirs: Sequence[Path]) -> dict[str, list[str]]:
    """Returns what environment.json, data.json and the newest checkpoint say besides the configs.

    Returns:
        "code", "keras", "data", ... -> a value for each run, "-" where its files do not say it.
    """
    environments = [_read(workdir / run_info.ENVIRONMENT) for workdir in workdirs]
    onednn = [_dict(each, "onednn").get("enabled") for each in environments]
    return {
        "code": [_code(each) for each in environments],
        **_code_files(environments),
        **_entries("", environments, "settings"),
        "Python": [str(each.get("python", "-")) for each in environments],
        **_entries("", environments, "versions"),
        "data": [str(_read(workdir / "data.json").get("examples", "-")) for workdir in workdirs],
        "content of the data": [_hash(workdir) for workdir in workdirs],
        "topology": [topology(each) for each in environments],
        "host of the chief": [str(each.get("host", "-")) for each in environments],
        "system": [str(each.get("platform", "-")) for each in environments],
        "processor": [str(each.get("processor") or "-") for each in environments],
        **_entries("threads: ", environments, "threads"),
        **_entries("GPU: ", environments, "gpu"),
        "oneDNN": ["-" if one is None else "on" if one else "off" for one in onednn],
    }


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; {} if there is none, or it is damaged."""
    with contextlib.suppress(ValueError):
        return files.read_json(path) or {}
    return {}


def _dict(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _entries(title: str, environments: Sequence[dict[str, Any]], section: str) -> dict[str, list[str]]:
    names = dict.fromkeys(name for each in environments for name in _dict(each, section))
    return {f"{title}{name}": [str(_dict(each, section).get(name, "-")) for each in environments] for name in names}


def _code(environment: dict[str, Any]) -> str:
    git = _dict(environment, "git")
    changed = f", changed {git.get('diff', '')[:10]}".rstrip() if git.get("changed") else ""
    return f"commit {git['commit'][:10]}{changed}" if git.get("commit") else "-"


def _code_files(environments: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Returns the hashes of the files of the code that differ; one entry, if none does; {}: not all are known."""
    if not all(_dict(each, "code") for each in environments):
        return {}
    found = _entries("code of ", environments, "code")
    different = {name: values for name, values in found.items() if len({*values}) > 1}
    return different or {"imported code": ["equal" for _ in environments]}


def _hash(workdir: Path) -> str:
    """Returns the hashes of the data that the newest checkpoint holds, as one short text."""
    step = directory.newest_step(workdir / "checkpoints")
    if step is None:
        return "-"
    manifest = _read(directory.step_path(workdir / "checkpoints", step) / "manifest.json")
    common = _dict(_dict(_dict(manifest, "state"), "data"), "common")
    return hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:10] if common else "-"


def topology(environment: dict[str, Any]) -> str:
    """Returns the workers and devices of environment.json, without the names of hosts and processes."""
    lines = [line for line in environment.get("workers", []) if isinstance(line, str) and "oneDNN" not in line]
    return "; ".join(_OF_ONE_RUN.sub("", line) for line in lines) or "-"
