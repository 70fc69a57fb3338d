"""Runs an unchanged Keras script on all workers, for example: python -m tfdist.run my_script.py

Started once per worker, by srun, mpirun, with TF_CONFIG or directly. The workers connect first. `fit`, `evaluate` and
`predict` of the script's models use all of them; only the chief prints and writes. See docs/scripts.md.

  --workdir=DIR        saves each call of fit in a directory of its own, DIR/fit1, DIR/fit2, ...: the same command
                       resumes.
  --logical_devices=N  makes N devices of this worker's CPU, to try a script on several replicas.
  --whole_calls=true   each replica calls layers that compare the examples of a batch with the whole batch.

Exit codes: those of python -m tfdist.main, or the script's own.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import error_report, interruption, process_exit
from tfdist.cluster.devices import onednn
from tfdist.cluster.several_workers import malloc
from tfdist.config import paths, removed, tensorflow_log
from tfdist.config.command_line import closed_streams

_USAGE = (
    "usage: python -m tfdist.run [--workdir=DIR] [--logical_devices=N] [--whole_calls=true] SCRIPT.py [its own flags]"
)

# What the threads and the atexit functions of a script may take after an error.
_ENDING_SECONDS = 60.0


def _whole(text: str) -> int | None:
    return int(text) or None if text.isdecimal() else None


# The flags, which are fields of `Command`: what a value must be, and what reads it, or returns None.
_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "workdir": (
        "a path, and no address: mount it",
        lambda text: None if paths.is_address(text) else Path(text).expanduser(),
    ),
    "logical_devices": ("a whole number and at least 1", _whole),
    "whole_calls": ("true", lambda text: text.lower() == "true" or None),
}


@dataclasses.dataclass
class Command:
    """What the command line says; `arguments` are the script's own."""

    script: Path
    arguments: list[str]
    workdir: Path | None = None
    logical_devices: int = 1
    whole_calls: bool = False


def parse(arguments: list[str]) -> Command:
    """Reads the command line.

    Raises:
        SystemExit: there is no such script, or a flag before it is unknown; code 0 after --help.
    """
    given: dict[str, Any] = {}
    while arguments and arguments[0].startswith("-"):
        flag, *arguments = arguments
        name, equals, value = flag.partition("=")
        if name in ("--help", "-h"):
            print(f"{_USAGE}\n\n{__doc__.strip()}")
            sys.exit(0)
        field = name.removeprefix("--")
        if sentence := removed.of_flag(field, _READ):
            sys.exit(sentence)
        if field not in _READ:
            sys.exit(f"tfdist.run has no flag {name}: flags of the script follow its name. {_USAGE}")
        if not equals and arguments:
            value, *arguments = arguments
        if not value:
            sys.exit(f"tfdist.run: {name} has no value. {_USAGE}")
        meant, read = _READ[field]
        given[field] = read(value)
        if given[field] is None:
            sys.exit(f"tfdist.run: {name} must be {meant}. Received: {value!r}")
    if not arguments:
        sys.exit(f"tfdist.run needs a script. {_USAGE}")
    script, *rest = arguments
    if not Path(script).is_file():
        meant = f" Did you mean {script}.py?" if Path(f"{script}.py").is_file() else ""
        sys.exit(f"tfdist.run: there is no file {script}.{meant} {_USAGE}")
    return Command(Path(script), rest, **given)


def run_script(command: Command) -> int:
    """Connects the workers and runs the script as `__main__`; returns the exit code."""
    from tfdist.keras_fit import connect
    from tfdist.keras_fit.script import context, ending, entropy, files, model_methods
    from tfdist.keras_fit.whole_batch import global_view

    script = command.script
    options = config_lib.ClusterOptions(logical_devices=command.logical_devices)
    sys.argv[:] = [str(script), *command.arguments]  # The workers compare the script.
    cluster = connect.connect(options, seed=None)
    if command.whole_calls:
        global_view.call_mixing_layers_whole()
    if command.workdir is None:
        interruption.restore_handlers()  # Nothing is saved: signals end the script as usual.
    sys.path[0] = str(script.resolve().parent)
    end: Callable[[], None] = lambda: None  # noqa: E731
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(model_methods.distribute_methods(cluster, command.workdir))
            stack.enter_context(entropy.share_seed(cluster, command.workdir))
            stack.enter_context(context.script_runs(cluster))
            stack.enter_context(files.write_once(cluster))
            end = stack.enter_context(ending.collect_endings())
            code = _run(script)
            end()
            return code
    except (Exception, KeyboardInterrupt) as error:
        # The traceback starts with the script's first frame.
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename != str(script):
            traceback = traceback.tb_next
        code = error_report.report_exception(error.with_traceback(traceback or error.__traceback__))
        if cluster.is_chief:
            with process_exit.end_within(
                _ENDING_SECONDS, error, "waited for the script's threads and atexit functions"
            ):
                end()
        return code


def _run(script: Path) -> int:
    """Runs the script; returns its exit code."""
    import runpy

    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Runs the script that the command line names, and exits the process."""
    closed_streams.open_closed()
    command = parse(sys.argv[1:])
    if "PYTHONHASHSEED" not in os.environ:  # Python reads it as it starts: sets of texts have one order on all workers.
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    tensorflow_log.announce()
    # Before TensorFlow is imported, which allocates, and reads its settings.
    malloc.keep_freed_memory(config_lib.ClusterOptions(), os.environ)
    onednn.choose(os.environ, command.workdir and command.workdir / "fit1")
    process_exit.run_and_exit(lambda: run_script(command))


if __name__ == "__main__":
    main()
