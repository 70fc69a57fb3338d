"""A run's workdir in place of a config: `tfdist train runs/digits`. Imports no TensorFlow."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

from tfdist.config import config_dict, schema

FILE = "config.json"


def newest(path: str | os.PathLike[str]) -> Path:
    """Returns the workdir of the run at `path`: itself, or that of the last call of `fit` of a script.

    Raises ValueError if there is none.
    """
    path = Path(path).expanduser()
    fits = [file.parent for file in path.glob(f"fit*/{FILE}") if file.parent.name[3:].isdecimal()]
    found = [*sorted(fits, key=lambda each: int(each.name[3:])), *([path] if (path / FILE).is_file() else [])]
    if found:
        return found[-1]
    raise ValueError(f"{path} has no run: it has no {FILE}. Give the workdir of a run, such as runs/digits.")


def load(path: str | os.PathLike[str]) -> schema.Config:
    """Returns the config that a run has saved in its workdir; ValueError if it is damaged, or a script made the run."""
    try:
        saved = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): start with the config file instead.") from None
    if "target" not in saved.get("model", {}):
        command = _environment(path).get("command", [])
        again = f": {shlex.join(command)}" if command else "."
        raise ValueError(
            f"{Path(path).parent} is the workdir of a script, which defines its model and data. To use its model, load "
            f"model.keras with keras.models.load_model. For more epochs, change the number of epochs in the script. To "
            f"resume, run the script again{again}"
        )
    return config_dict.from_saved(saved)


def import_folders(path: str) -> list[str]:
    """Returns the folders with the modules that a config names: that of the file, and where a saved run started."""
    if not path.endswith(".json"):
        return [os.path.dirname(os.path.abspath(path))]
    environment = _environment(path)
    file = environment.get("config_file", "").partition(":")[0]
    folders = dict.fromkeys((environment.get("directory", ""), os.path.dirname(file)))
    return [folder for folder in folders if os.path.isdir(folder)]


def first_config(path: str) -> str:
    """Returns the absolute path of the config file of a run; for a saved config, of the file that it came from."""
    if path.endswith(".json"):
        return _environment(path).get("config_file", "")
    return path and os.path.abspath(path)


def _environment(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return json.loads(Path(path).with_name("environment.json").read_text())
    except (OSError, ValueError):
        return {}
