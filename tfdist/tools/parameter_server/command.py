"""Trains with parameter servers: each worker reads the weights, computes, and sends its update, waiting for nobody.

    python -m tfdist asynchronous --config=configs/digits.py --workers=2 --servers=1

starts workers and servers on this machine, and this process is their chief: it reads and prepares the batches, hands
them out one a worker at a time, evaluates, saves and reports. A worker that dies is started again; meanwhile the others
go on, and its batch goes to one of them. What the weights go through depends on who comes first: two runs differ.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from tfdist.cluster import interruption, process_exit
from tfdist.config import flags as config_flags


def define_flags() -> None:
    """Defines the flags; not at import, for each command has flags of the same names."""
    config_flags.define_config()
    flags.DEFINE_string("workdir", None, "Where the run lives. Default: runs/NAME for a config file NAME.py.")
    flags.DEFINE_integer("workers", 2, "Workers on this machine.", lower_bound=1)
    flags.DEFINE_integer("servers", 1, "Parameter servers on this machine.", lower_bound=1)
    flags.DEFINE_bool("allow_config_changes", False, "Go on although the workdir's config was another.")


def run() -> int:
    """Starts workers and servers, trains as their chief, and ends them; returns the exit code."""
    from tfdist.tools.parameter_server import coordinator, servers

    config = flags.FLAGS["config"].value
    config.train.asynchronous = True
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    arguments = [*config_flags.config_arguments(sys.argv), "--config.train.asynchronous=true", f"--workdir={workdir}"]

    def give_up(text: str) -> None:
        print(f"tfdist: {text}: start again, and the run goes on from its newest checkpoint", file=sys.stderr)
        crew.end()
        os._exit(interruption.EXIT_PEER_LOST)

    def say(text: str) -> None:
        print(text, flush=True)

    crew = servers.start_servers(
        [sys.executable, "-m", "tfdist.main", *arguments],
        os.environ,
        workers=flags.FLAGS.workers,
        servers=flags.FLAGS.servers,
        say=say,
        give_up=give_up,
    )

    def watch(event: Callable[[str], None]) -> None:
        crew.say = event
        crew.watch()

    try:
        allow = flags.FLAGS.allow_config_changes
        return coordinator.run_asynchronously(config, workdir, allow_config_changes=allow, watch=watch)
    finally:
        crew.end()


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(run)
