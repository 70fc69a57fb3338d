"""Downloads and prepares data before a job: `python -m tfdist prepare --config=...`.

For login nodes with internet access, if the compute nodes have none. It downloads what the config's source can
download, opens both splits, and reads and prepares the first batch of each, so that errors in the data appear here and
not at the start of the job. It can be repeated: existing data is not downloaded again.
"""

import argparse
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import specs, tool_flags
from tfdist.tools import tables
from tfdist.training import features

HEADER = ("split", "examples", "batch", "seconds")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flag --config."""
    parser.add_config()


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(show, args.config), saves=False)


def with_download(spec: dict[str, Any]) -> dict[str, Any]:
    """The source's spec with `download=True`, if its function has such an argument."""
    parameters = inspect.signature(specs.resolve(spec, field="config.data.source")).parameters
    return {**spec, "download": True} if "download" in parameters else spec


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


def show(config: config_lib.Config) -> int:
    """Prepares the data of the config, and prints a table; returns the exit code."""
    print(tables.text(HEADER, prepare(config)))
    return 0
