"""A run as its workdir describes it: config, class names, preparation. Imports no TensorFlow."""

import dataclasses
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.config import saved_run, specs
from tfdist.report import files

MODEL, FINISHED, ABOUT = "model.keras", "finished.json", "data.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """The workdir of a run of a config."""

    workdir: Path
    config: config_lib.Config
    # What data.json says about the examples: "classes", "columns", "prepared"; {} without the file.
    about: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        """The name of each class in the order of the labels; [] if unknown."""
        return self.about.get("classes") or []

    @property
    def label_column(self) -> str:
        """The column that was to be predicted, if the run was trained on a table; "" otherwise."""
        columns = self.about.get("columns") or {}
        return next((name for name, each in columns.items() if each.get("role") == "label"), "")

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.workdir / "checkpoints"

    @property
    def labels(self) -> str:
        """The key of the labels in a batch."""
        return self.config.objective.get("labels", "label")

    def input_key(self) -> str:
        """Returns the key of the model's input in a batch.

        Raises ValueError if the objective has no argument `inputs`: how it calls the model is then unknown.
        """
        objective = self.config.objective
        function = specs.resolve(objective, field="config.objective")
        parameter = inspect.signature(function).parameters.get("inputs")
        if parameter is None or not isinstance(objective.get("inputs", parameter.default), str):
            raise ValueError(
                f"config.objective={objective['target']!r} has no argument `inputs` that names the input of the model, "
                f"so this command cannot call the model. Load {self.workdir / MODEL} with keras.models.load_model."
            )
        return objective.get("inputs", parameter.default)


def open_run(path: str | os.PathLike[str]) -> SavedRun:
    """Opens a workdir, and makes the modules of its config importable.

    Raises ValueError if there is no run, a script made it, or a file of it is damaged.
    """
    workdir = saved_run.newest(path)
    file = workdir / saved_run.FILE
    config = saved_run.load(file)
    sys.path += saved_run.import_folders(str(file))
    about = files.read_json(workdir / ABOUT, "restore it, or remove it.") or {}
    return SavedRun(workdir=workdir, config=config, about=about)
