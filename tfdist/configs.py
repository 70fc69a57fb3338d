"""The shipped configs and networks, as the package `tfdist.configs`: the folder configs/ of a clone.

In the wheel the same files are in the package: `tfdist.configs.networks.airbench:network` is a network everywhere.
"""

from pathlib import Path

_IN_WHEEL = Path(__file__).with_name("shipped_configs")
FOLDER = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).parents[1] / "configs"
__path__ = [str(FOLDER)]


def find(path: str) -> str:
    """Returns the path of a config, with the argument that may follow it: "configs/digits.py:argument".

    A path that names no file becomes that of the shipped config of this name, with or without ".py", if there is one.
    """
    name, colon, argument = path.partition(":")
    shipped = FOLDER / f"{name.removeprefix('configs/').removesuffix('.py')}.py"
    return path if Path(name).is_file() or not shipped.is_file() else f"{shipped}{colon}{argument}"
