"""Files that come with tfdist: docs/ and launch/ of a clone, which the wheel has in the package; templates."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def find(path: str) -> Path:
    """Returns where a file or folder of a clone is here, such as "docs" or "launch/slurm.sbatch"."""
    first, _, rest = path.partition("/")
    folder = _PACKAGE / f"shipped_{first}"
    return (folder if folder.is_dir() else _PACKAGE.parent / first) / rest


def fill(template: str, **values: object) -> str:
    """Returns a template of the folder templates, filled with `values` by `str.format`."""
    return (Path(__file__).parent / "templates" / f"{template}.txt").read_text(encoding="utf-8").format(**values)
