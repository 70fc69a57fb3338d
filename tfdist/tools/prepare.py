"""Downloads data before a job: `python -m tfdist prepare --config=...`.

For login nodes with internet access, if the compute nodes have none. It downloads what the config's source can
download, and opens both splits; `tfdist doctor` reads and prepares examples. It can be repeated: existing data is not
downloaded again.
"""

import argparse
import functools
import inspect
import time

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import specs, tool_flags
from tfdist.tools import tables
from tfdist.training import features

HEADER = ("split", "examples", "source", "seconds")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flag --config."""
    parser.add_config()


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(show, args.config), saves=False)


def prepare(config: config_lib.Config) -> list[tuple]:
    """Downloads and opens both splits; returns a row of `HEADER` for each.

    Raises ValueError if the config cannot be used; OSError if the data does not exist and cannot be downloaded.
    """
    from tfdist.data import inputs as inputs_lib

    features.validate_config(config)
    spec = config.data.source
    if "download" in inspect.signature(specs.resolve(spec, field="config.data.source")).parameters:
        config.data.source = {**spec, "download": True}
    rows = []
    for split in (config.data.train_split, config.data.evaluation_split):
        if split is not None:
            started = time.perf_counter()
            source = inputs_lib.open_source(config, split)
            rows.append((split, len(source), repr(source), round(time.perf_counter() - started, 2)))
    return rows


def show(config: config_lib.Config) -> int:
    """Prepares the data of the config, and prints a table; returns the exit code."""
    print(tables.text(HEADER, prepare(config)))
    return 0
