"""Writes a small directory that trains on your data at once: `python -m tfdist new NAME --images=DIR`.

It holds a config, a network, a README, and a batch file where Slurm is found; all are yours to edit. The data are
opened by the source that the config names, and are not copied.

    tfdist new shapes --images=shapes               # DIR/CLASS/*.jpg, or DIR/train/CLASS/*.jpg and DIR/test/...
    tfdist new flowers --table=flowers.csv          # a CSV or Parquet file; the last column is predicted
    tfdist new flowers --table=flowers.csv --label=species
    tfdist new spectra --arrays=spectra.npz         # arrays x and y, or x_train, y_train, x_test and y_test
    tfdist new poems --text=poems.txt               # predicts the next character
    tfdist new mine --script                        # a script with Keras' own model.fit
"""

import keyword
import re
import shlex
import sys
from pathlib import Path

from absl import flags

from tfdist.config.command_line import tool_words
from tfdist.tools import tables
from tfdist.tools.start import look, templates

USAGE = "NAME --images=DIR | --table=FILE | --arrays=FILE | --text=FILE | --script"
_KINDS = ("images", "table", "arrays", "text")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("images", None, "A folder with a folder of images for each class, or for each split and class.")
    flags.DEFINE_string("table", None, "A CSV, TSV or Parquet file with a row for each example.")
    flags.DEFINE_string("label", "", "The column of the table to predict. Default: the last one.")
    flags.DEFINE_string("arrays", None, "An .npz file.")
    flags.DEFINE_string("text", None, "A text file in UTF-8.")
    flags.DEFINE_bool("script", False, "Write a Keras script instead of a config.")


def parse(argv: list[str]) -> list[str]:
    """Parses the command line; returns the program's name and the name of the directory."""
    rest, values = tool_words.parse_words(argv), flags.FLAGS
    given = [kind for kind in _KINDS if values[kind].value] + ["script"] * values.script
    if len(rest) != 2 or len(given) != 1:
        sys.exit(f"tfdist new: give a name and one kind of data: tfdist new {USAGE}")
    return rest


def main(argv: list[str]) -> None:
    """Writes the directory, and prints what was found and what to type next; see `write`."""
    values = flags.FLAGS
    kind = next((kind for kind in _KINDS if values[kind].value), "script")
    print(write(Path(argv[1]), kind, values[kind].value if kind in _KINDS else "", values.label))


def write(folder: Path, kind: str, data: str = "", label: str = "") -> str:
    """Writes a directory that trains; returns what was found, what was written, and what to type next.

    Args:
        folder: the directory; its name is that of the config.
        kind: "images", "table", "arrays", "text" or "script".
        data: the folder or file; "" for a script.
        label: the column of a table to predict; "": the last one.

    Raises ValueError or OSError if the name, the data or the directory cannot be used.
    """
    name = re.sub(r"\W", "_", folder.name)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{str(folder)!r} is no name for a config: it must begin with a letter, such as run_{name}.")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"the directory {folder} exists and is not empty: choose another name, or remove it.")
    lines: list[str] = []
    if kind == "script":
        files, command = templates.of_script(name), f"tfdist run --workdir=runs/{name} {name}.py"
    else:
        found = _look(kind, data, label)
        files, command = templates.of_data(name, found), f"tfdist train {name}.py"
        counts = f"{len(found.training):,} examples for training, {len(found.evaluation):,} for evaluation"
        lines = [f"found      {line}" for line in (*found.lines, counts)]
    tables.make_folder(folder)
    for file, content in files.items():
        (folder / file).write_text(content)
    return "\n".join(
        [*lines, f"written    {folder}: {', '.join(files)}", "", f"    cd {shlex.quote(str(folder))} && {command}"]
    )


def _look(kind: str, data: str, label: str) -> look.Data:
    path = Path(data).expanduser().absolute()
    if kind == "images" and not path.is_dir():
        raise FileNotFoundError(f"--images={data}: there is no folder {str(path)!r}.")
    if kind != "images" and not path.is_file():
        raise FileNotFoundError(f"--{kind}={data}: there is no file {str(path)!r}.")
    print("Looking at the data. TensorFlow starts, which takes some seconds.", flush=True)
    return look.table(path, label) if kind == "table" else getattr(look, kind)(path)
