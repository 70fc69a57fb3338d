"""The shipped configs and networks, as the package `tfdist.configs`: the folder configs/ of a clone.

A wheel has the same files in the package, so `tfdist.configs.networks.airbench:network` works in both.
"""

from pathlib import Path

_IN_WHEEL = Path(__file__).with_name("shipped_configs")
FOLDER = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).parents[1] / "configs"
__path__ = [str(FOLDER)]


def find(path: str) -> str:
    """Returns the path of a config, with the argument that may follow it: "configs/digits.py:argument".

    If there is no such file, but a shipped config has this name, with or without ".py", returns the path of that one.
    Otherwise returns `path` itself.
    """
    name, colon, argument = path.partition(":")
    shipped = FOLDER / f"{name.removeprefix('configs/').removesuffix('.py')}.py"
    return path if Path(name).is_file() or not shipped.is_file() else f"{shipped}{colon}{argument}"
