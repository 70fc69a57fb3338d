"""Downloads and prepares data before a job: `python -m tfdist prepare --config=...`.

For login nodes with internet access, if the compute nodes have none. It downloads what the config's source can
download, opens both splits, and reads and prepares the first batch of each, so that errors in the data appear here and
not at the start of the job. It can be repeated: existing data is not downloaded again.

With --size and --output it writes the images of both splits as JPEGs at the size that training needs: `resized_files`.
"""

import argparse
import functools
import inspect
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import specs, tool_flags
from tfdist.tools import tables
from tfdist.training import features

HEADER = ("split", "examples", "batch", "seconds")
FILES_HEADER = ("split", "images", "MB", "seconds", "images/s")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    meaning = "Write images of this shorter side, as --size=256, smaller ones as they are."
    parser.add_argument("--size", metavar="PIXELS", type=tool_flags.at_least(1), help=meaning)
    meaning = "With --size: the folder, which gets a folder for each split."
    parser.add_argument("--output", metavar="DIR", type=tool_flags.path, help=meaning)


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    if (args.size is None) != (args.output is None):
        raise ValueError("give both --size=256 and --output=FOLDER to write images, or neither.")
    process_exit.run_and_exit(functools.partial(prepare_or_write, args), saves=False)


def with_download(spec: dict[str, Any]) -> dict[str, Any]:
    """The source's spec with `download=True`, if its function has such an argument."""
    return {**spec, "download": True} if "download" in _arguments(spec) else spec


def with_encoded(spec: dict[str, Any]) -> dict[str, Any]:
    """The source's spec with `encoded=True`, if its function has such an argument.

    Without a size, which "image" then does not have; with features of its own, others may need it.
    """
    if "encoded" not in _arguments(spec):
        return spec
    return {name: value for name, value in spec.items() if name != "size" or "features" in spec} | {"encoded": True}


def _arguments(spec: dict[str, Any]) -> Any:
    return inspect.signature(specs.resolve(spec, field="config.data.source")).parameters


def read_batch(options: config_lib.Data, source: Any, prepare: Callable[..., dict[str, Any]], *, training: bool) -> str:
    """Reads and prepares the first batch of a split; describes it, such as "image float32 [128, 32, 32, 3]".

    Raises ValueError, with its name, if an example cannot be read.
    """
    from tfdist.data import stream

    size = min(len(source), options.batch_size)
    with stream.name_damaged_example(source):
        if training:
            more = {"seed": 0, "shuffle": options.shuffle}
            batch = next(iter(stream.training(source, prepare, stream.ReplicaShard(), global_batch=size, **more)(0, 1)))
        else:
            dataset, _ = stream.evaluation(source, prepare, stream.ReplicaShard(), global_batch=size, seed=0)
            batch, _ = next(iter(dataset))
    return ", ".join(f"{name} {value.dtype.name} {value.shape.as_list()}" for name, value in batch.items())


def prepare(config: config_lib.Config) -> list[tuple]:
    """Downloads and opens both splits, and reads the first batch of each; returns a row of `HEADER` for each.

    Raises ValueError if the config cannot be used, or an example cannot be read; OSError if the data does not exist and
    cannot be downloaded.
    """
    from tfdist.data import inputs as inputs_lib

    features.check(config)
    function = specs.partial(config.data.prepare, field="config.data.prepare", positional=2, training=True)
    config.data.source = with_download(config.data.source)
    rows = []
    for split, training in ((config.data.train_split, True), (config.data.evaluation_split, False)):
        if split is None:
            continue
        started = time.perf_counter()
        source = inputs_lib.open_source(config, split)
        content = read_batch(config.data, source, function, training=training)
        rows.append((split, len(source), content, round(time.perf_counter() - started, 2)))
    return rows


def write_files(config: config_lib.Config, size: int, output: Path) -> list[tuple]:
    """Downloads both splits, and writes their images to `output`.

    Returns a row of `FILES_HEADER` for each split, without its slice. Raises ValueError if the config cannot be used,
    or an image cannot be read; OSError if the data does not exist, or the files cannot be written.
    """
    from tfdist.data import inputs as inputs_lib
    from tfdist.data import stream
    from tfdist.tools.prepare_data import resized_files

    features.check(config)
    spec = config.data.source = with_encoded(with_download(config.data.source))
    rows = []
    both = [split for split in (config.data.train_split, config.data.evaluation_split) if split is not None]
    for split in dict.fromkeys(split.partition("[")[0] for split in both):
        source = inputs_lib.open_source(config, split)
        with stream.name_damaged_example(source):
            num_bytes, seconds = resized_files.write_split(source, spec, split, size, output)
        rate = round(len(source) / seconds) if seconds else "present"
        rows.append((split, len(source), round(num_bytes / 1e6, 1), round(seconds, 1), rate))
    return rows


def _advice(output: Path) -> str:
    source = {"target": "tfdist.zoo.sources:prepared", "path": str(output.absolute())}
    return (
        f"\nIn the config:\n  source={source!r}\n"
        f"or on the command line:\n  --config.data.source={shlex.quote(json.dumps(source, ensure_ascii=False))}\n"
        "with config.data.prepare=tfdist.zoo.inception:image."
    )


def prepare_or_write(args: argparse.Namespace) -> int:
    """Prepares the data of the config, and prints a table; returns the exit code."""
    if args.size is None:
        print(tables.text(HEADER, prepare(args.config)))
    else:
        print(tables.text(FILES_HEADER, write_files(args.config, args.size, args.output)))
        print(_advice(args.output))
    return 0
