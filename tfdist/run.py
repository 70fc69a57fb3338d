"""Runs an unchanged Keras script on all workers, for example: python -m tfdist.run my_script.py

Start it once per worker, by srun, mpirun or another launcher, or with TF_CONFIG; without these there is one worker. The
workers connect first. `fit`, `evaluate` and `predict` of the script's models use all workers; only the chief prints and
writes. See docs/scripts.md.

  --workdir=DIR        saves each call of fit in its own directory: DIR/fit1, DIR/fit2, ... Run the same command again
                       to resume.
  --logical_devices=N  splits this worker's CPU into N devices, to try a script on several replicas.
  --whole_calls=true   a layer that mixes the examples of a batch gets the whole global batch, on each replica.

Exit codes: those of python -m tfdist.main, or the script's own.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist import config as config_lib
from tfdist.cluster import error_report, interruption, process_exit
from tfdist.cluster.devices import onednn
from tfdist.config import closed_streams, tensorflow_log, tool_flags

# Seconds that the script's threads and atexit functions may take after an error.
_ENDING_SECONDS = 60.0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Reads the command line: the flags, `script`, and the script's own `arguments`.

    Raises:
        SystemExit: there is no such script, or a flag before it is wrong; code 0 after --help.
    """
    parser = tool_flags.Parser("python -m tfdist.run", f"{__doc__}")
    parser.usage = (
        "python -m tfdist.run [--workdir=DIR] [--logical_devices=N] [--whole_calls=true] SCRIPT.py [its flags]"
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--workdir", type=tool_flags.path, help=argparse.SUPPRESS)
    parser.add_argument("--logical_devices", type=tool_flags.at_least(1), default=1, help=argparse.SUPPRESS)
    parser.add_argument("--whole_calls", choices=["true"], help=argparse.SUPPRESS)
    parser.add_argument("script", metavar="SCRIPT.py", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    args, unknown = parser.parse_known_args(words)
    if unknown:
        parser.refuse(unknown, "flags of the script follow its name")
    if not args.script.is_file():
        found = args.script.with_suffix(".py")
        parser.error(f"there is no file {args.script}." + (f" Did you mean {found}?" if found.is_file() else ""))
    return args


def run_script(args: argparse.Namespace) -> int:
    """Connects the workers and runs the script as `__main__`; returns the exit code."""
    from tfdist.keras_fit import connect
    from tfdist.keras_fit.script import ending, entropy, model_methods, script_state, written_files
    from tfdist.keras_fit.whole_batch import global_view

    script = args.script
    options = config_lib.ClusterOptions(logical_devices=args.logical_devices)
    sys.argv[:] = [str(script), *args.arguments]  # Before `connect`, which compares the script on all workers.
    cluster = connect.connect(options, seed=None)
    global_view.set_whole_calls(bool(args.whole_calls))
    if args.workdir is None:
        interruption.restore_handlers()  # Nothing is saved: signals end the script as usual.
    sys.path[0] = str(script.resolve().parent)
    try:
        with (
            ending.collect_exit_functions() as end,
            model_methods.distribute_methods(cluster, args.workdir),
            entropy.share_seed(cluster, args.workdir) as seed,
            script_state.script_runs(cluster, seed),
            written_files.write_once(cluster),
        ):
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
    closed_streams.reopen()
    args = parse(sys.argv[1:])
    # Python reads this variable at startup. The same value gives sets of strings the same order on all workers.
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    tensorflow_log.announce()
    # Before TensorFlow is imported and reads this setting.
    onednn.choose(os.environ, args.workdir and args.workdir / "fit1")
    process_exit.run_and_exit(lambda: run_script(args))


if __name__ == "__main__":
    main()
