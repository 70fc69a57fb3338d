"""config.json and environment.json: what was run, where, and with which versions. Imports no TensorFlow."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import time
from typing import Any

from tfdist.report import files

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
# Packages whose versions affect the results of a run.
DISTRIBUTIONS = (
    *("tfdist", "tensorflow", "tf-nightly", "keras", "keras-nightly", "numpy", "tensorflow-datasets"),
    *("ml-collections", "tensorboard"),
)


def write_config(workdir: str | os.PathLike[str], config: dict[str, Any]) -> None:
    """Writes workdir/config.json from JSON values."""
    files.write_json(os.path.join(workdir, CONFIG), config)


def read_config(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the config written by `write_config`, or None if there is none; raises ValueError if it is damaged."""
    return files.read_json(os.path.join(workdir, CONFIG), "restore it, or remove it to start with this config.")


def saved_xla(workdir: str | os.PathLike[str]) -> bool | None:
    """Returns `train.xla` of the run in `workdir`; None: there is no run, or the field was not set."""
    train = (read_config(workdir) or {}).get("train")
    return train.get("xla") if isinstance(train, dict) else None


def write_environment(workdir: str | os.PathLike[str], extra: dict[str, Any]) -> dict[str, Any]:
    """Writes workdir/environment.json: versions, host, command line, time, and `extra`; returns its content."""
    described = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [sys.executable, *sys.orig_argv[1:]],
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "git": git_state("."),
    }
    files.write_json(os.path.join(workdir, ENVIRONMENT), described | extra)
    return described | extra


def versions() -> dict[str, str]:
    """Returns the versions of those of `DISTRIBUTIONS` that are installed."""
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_state(directory: str) -> dict[str, Any] | None:
    """Returns {"commit", "changed"} of `directory`; None outside git.

    `changed`: whether tracked files differ from the commit; then "diff" is the hash of the differences.
    """

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", directory, *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD").decode()
        if not git("status", "--porcelain", "--untracked-files=no"):
            return {"commit": commit, "changed": False}
        difference = git("diff", "--no-ext-diff", "HEAD")
        return {"commit": commit, "changed": True, "diff": hashlib.sha256(difference).hexdigest()[:16]}
    except (OSError, subprocess.SubprocessError):
        return None
