"""Writes a small directory for training on your data: `python -m tfdist new NAME --images=DIR`.

It holds a config, a network, a README, and a batch file where Slurm is found; all are yours to edit. The data is opened
by the source that the config names, and is not copied. A Keras script needs none of it: `tfdist run` runs it.

    tfdist new shapes --images=shapes               # DIR/CLASS/*.jpg, or DIR/train/CLASS/*.jpg and DIR/test/...
    tfdist new shapes --images=shapes --pretrained=MobileNetV2     # the last layer of a network of ImageNet
    tfdist new flowers --table=flowers.csv          # a CSV or Parquet file; the last column is predicted
    tfdist new flowers --table=flowers.csv --label=species --ignore=id,name
"""

import argparse
import importlib.util
import json
import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.config import specs, tool_flags
from tfdist.config import text as text_lib
from tfdist.tools import tables
from tfdist.tools.start import shipped

USAGE = "NAME --images=DIR [--pretrained=NETWORK] | --table=FILE [--label=COLUMN]"
_EVALUATION = ("test", "val", "valid", "validation")
# Pixels of a side to which images are scaled: at most, for the template's network; exactly, for a pretrained one.
_SIDE, _PRETRAINED_SIDE = 96, 160
_EPOCHS = 20


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and the name of the directory."""
    parser.add_argument("name", metavar="NAME", type=tool_flags.path, help="The directory, and the name of the config.")
    kinds = parser.add_mutually_exclusive_group()
    meaning = "A folder with a folder of images for each class, or for each split and class."
    kinds.add_argument("--images", metavar="DIR", help=meaning)
    kinds.add_argument("--table", metavar="FILE", help="A CSV, TSV or Parquet file with a row for each example.")
    meaning = "With --images: a network of keras.applications, with weights of ImageNet."
    parser.add_argument("--pretrained", metavar="NETWORK", default="", help=meaning)
    meaning = "The column of the table to predict. Default: the last one."
    parser.add_argument("--label", metavar="COLUMN", default="", help=meaning)
    meaning = "Columns of the table that are left out, such as numbers of rows."
    parser.add_argument("--ignore", metavar="A,B,...", type=tool_flags.names, default=[], help=meaning)


def main(args: argparse.Namespace) -> None:
    """Writes the directory, and prints what was found and what to type next; see `write`."""
    if not (args.images or args.table):
        raise ValueError(f"give one kind of data: tfdist new {USAGE}")
    print(write(args))


def write(args: argparse.Namespace) -> str:
    """Writes the directory; returns what was found, what was written, and what to type next.

    Raises ValueError or OSError if the name, the data or the directory cannot be used.
    """
    folder, path = args.name, Path(args.images or args.table).expanduser().absolute()
    name = re.sub(r"\W", "_", folder.name)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"the directory {folder} exists and is not empty: choose another name, or remove it.")
    # A directory without a module in it has a spec without an origin.
    if not name.isidentifier() or keyword.iskeyword(name) or getattr(importlib.util.find_spec(name), "origin", None):
        raise ValueError(
            f"{str(folder)!r} cannot name a config: use a name that begins with a letter and is not a Python module, "
            f"such as run_{name}."
        )
    print("Opening the data. TensorFlow starts, which takes some seconds.", flush=True)
    found, files = _images(name, path, args.pretrained) if args.images else _table(name, path, args.label, args.ignore)
    readme = "pretrained_readme" if args.pretrained else "readme"
    files["README.md"] = shipped.fill(readme, name=name, data=path.name, longer=2 * _EPOCHS)
    if shutil.which("sbatch"):
        files["job.sbatch"] = shipped.fill("job", name=name, cpus=os.cpu_count(), python=sys.executable)
    tables.make_folder(folder)
    for file, content in files.items():
        (folder / file).write_text(content)
    written = f"written    {folder}: {', '.join(files)}"
    return f"{found}{written}\n\n    cd {shlex.quote(str(folder))} && tfdist train {name}.py"


def _images(name: str, path: Path, pretrained: str) -> tuple[str, dict[str, str]]:
    """Returns what was found, and file name -> content, for a folder of images."""
    train, test = "train", "test"
    if (path / train).is_dir():
        test = next((each for each in _EVALUATION if (path / each).is_dir()), "")
        train, test = (train, test) if test else ("train[:80%]", "train[80%:]")
    source: dict[str, Any] = {"target": "tfdist.zoo.sources:image_folder", "path": str(path)}
    first = specs.build(source | {"encoded": True}, train, field="--images")
    if pretrained:
        function = specs.resolve({"target": "tfdist.zoo.models:find_application"}, field="--pretrained")(pretrained)
        size = [_PRETRAINED_SIDE] * 2
        package = function.__module__.rpartition(".")[2]
        shape = (*size, 3)
        module = shipped.fill("pretrained", name=name, shape=shape, pretrained=pretrained, package=package)
    else:
        size_of = specs.resolve({"target": "tfdist.zoo.decoding:image_size"}, field="--images")
        size = [min(_SIDE, side) for side in size_of(first.files[0])]
        module = shipped.fill("images", name=name, shape=(*size, 3))
    source["size"] = size
    model = {"num_classes": first.num_classes} | ({"weights": "imagenet"} if pretrained else {})
    objective = {"target": "tfdist.zoo.objectives:classification"}
    config, counts = _config(name, source, (train, test), model, objective, "accuracy", "--images")
    classes = text_lib.list_names(first.classes, limit=8)
    found = f"found      {first.num_classes} classes: {classes}\n           images, scaled to {size[0]}x{size[1]}\n"
    return found + counts, {f"{name}.py": config, f"{name}_model.py": module}


def _table(name: str, path: Path, label: str, ignore: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns what was found, and file name -> content, for a table."""
    if not label:
        frame = specs.resolve({"target": "tfdist.zoo.sources.table:read"}, field="--table")(str(path))
        label = str(frame.columns[-1])
    source: dict[str, Any] = {"target": "tfdist.zoo.sources:table", "path": str(path), "label": label}
    source |= {"ignore": list(ignore)} if ignore else {}
    training = specs.build(source, "train", field="--table")
    import tensorflow as tf

    with tf.device("CPU:0"):
        batch = training.read(tf.range(len(training), dtype=tf.int64))
    classes = training.num_classes
    if classes:
        arguments, outputs = "num_classes, ", "return keras.Model(inputs, layers.Dense(num_classes)(x))"
        objective = {"target": "tfdist.zoo.objectives:classification", "inputs": "inputs"}
        what = f"a class, of {classes}: {text_lib.list_names(training.classes, limit=8)}"
    else:
        targets = batch["targets"].numpy().astype(float)
        mean, deviation = targets.mean(), targets.std() or 1.0
        arguments, objective = "", {"target": "tfdist.zoo.objectives:regression"}
        outputs = (
            "x = layers.Dense(1)(x)\n    # In the units of the targets: their deviation and mean.\n"
            f"    return keras.Model(inputs, layers.Rescaling({deviation:.6g}, {mean:.6g})(x))"
        )
        what = f"a number, {targets.min():.4g} to {targets.max():.4g}"
    shape = tuple(batch["inputs"].shape[1:])
    module = shipped.fill("dense", name=name, shape=shape, arguments=arguments, outputs=outputs)
    model, metric = ({"num_classes": classes}, "accuracy") if classes else ({}, "mae")
    config, counts = _config(name, source, ("train", "test"), model, objective, metric, "--table")
    kinds = {each: one for each, one in training.columns.items() if one["role"] == "input"}
    categories = {each: f" ({len(one['values'])} values)" for each, one in kinds.items() if one["kind"] == "category"}
    inputs = text_lib.list_names((each + categories.get(each, "") for each in kinds), limit=8)
    found = f"found      the column {label!r} is predicted: {what}\n           from the columns: {inputs}\n"
    return found + counts, {f"{name}.py": config, f"{name}_model.py": module}


def _config(
    name: str,
    source: dict[str, Any],
    splits: Sequence[str],
    model: dict[str, Any],
    objective: dict[str, Any],
    metric: str,
    field: str,
) -> tuple[str, str]:
    """Returns the config, and the numbers of examples in words."""
    training, evaluation = (len(specs.build(source, split, field=field)) for split in splits)
    images = field == "--images"
    batch = 32
    while batch > 1 and 16 * batch > training:  # A power of 2: it can be divided among 1, 2, 4 or 8 devices.
        batch //= 2
    config = shipped.fill(
        "config",
        name=name,
        data=Path(source["path"]).name,
        model=_code({"target": f"{name}_model:network"} | model),
        adapt="" if images else f'        adapt={{"target": "{name}_model:adapt"}},\n',
        source=",\n".join(f"                {_code(key)}: {_code(value)}" for key, value in source.items()),
        prepare="" if images else '            prepare={"target": "tfdist.zoo.prepare:identity"},\n',
        train_split=splits[0],
        training=training,
        evaluation_split=splits[1],
        evaluation=evaluation,
        batch_size=batch,
        objective=_code(objective),
        epochs=_EPOCHS,
        metric=metric,
        mode="max" if metric == "accuracy" else "min",
    )
    return config, f"           {training:,} examples for training, {evaluation:,} for evaluation\n"


def _code(value: object) -> str:
    """Returns strings, numbers, and lists and dicts of them as Python code with double quotes."""
    return json.dumps(value, ensure_ascii=False)
