"""In what runs differ: fields of their configs, code, versions, data, machines. Imports no TensorFlow."""

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory
from tfdist.config import diff
from tfdist.report import files, run_info

# What no two runs share, in the roster of the workers.
_OF_ONE_RUN = re.compile(r"host \S+, |pid \d+, ")


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


def aspects(workdirs: Sequence[Path]) -> dict[str, list[str]]:
    """Returns what environment.json, data.json and the newest checkpoint say besides the configs.

    Returns:
        "code", "keras", "data", ... -> a value for each run, "-" where its files do not say it.
    """
    environments = [_read(workdir / run_info.ENVIRONMENT) for workdir in workdirs]
    packages = dict.fromkeys(name for each in environments for name in _dict(each, "versions"))
    onednn = [_dict(each, "onednn").get("enabled") for each in environments]
    return {
        "code": [_code(each) for each in environments],
        "Python": [str(each.get("python", "-")) for each in environments],
        **{name: [str(_dict(each, "versions").get(name, "-")) for each in environments] for name in packages},
        "data": [str(_read(workdir / "data.json").get("examples", "-")) for workdir in workdirs],
        "content of the data": [_hash(workdir) for workdir in workdirs],
        "topology": [topology(each) for each in environments],
        "host of the chief": [str(each.get("host", "-")) for each in environments],
        "system": [str(each.get("platform", "-")) for each in environments],
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


def _code(environment: dict[str, Any]) -> str:
    git = _dict(environment, "git")
    return f"commit {git['commit'][:10]}{', changed' if git.get('changed') else ''}" if git.get("commit") else "-"


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
