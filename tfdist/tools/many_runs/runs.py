"""Lists runs: `python -m tfdist runs [DIR...]`, a line for each run below the directories, `runs` by default.

A run is running, queued (its Slurm job waits), stopped (saved, the same command resumes it), finished, diverged, failed
(by another error) or lost (its process no longer exists and left no word, or another worker was lost).

    python -m tfdist runs
    python -m tfdist runs sweeps/lr --where="learning_rate.peak>0.1" --where="state=finished" --sort=-best.accuracy

A field is named as in the config (learning_rate.peak, or its end, peak), a metric as best.accuracy (of the best
evaluation), last.accuracy (of the last one) or training.loss (of the last report); and run, state, step, epoch, epochs,
examples_per_second, hours, replicas, job, trouble.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.config import tool_flags
from tfdist.report import files, lines
from tfdist.tools import tables
from tfdist.tools.many_runs import find, selection
from tfdist.tools.many_runs.run_state import RunState

USAGE = "[DIR...] [flags]"
# Fields that every table has.
_SHOWN = ("run", "state", "step", "epoch", "examples_per_second", "hours", "trouble")
# Letters of a warning or an error in the table.
_TROUBLE = 60


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("paths", metavar="DIR", nargs="*", type=tool_flags.path, help="Where the runs are.")
    meaning = "Show only runs for which this holds; may be given several times."
    parser.add_argument("--where", metavar="CONDITION", action="append", default=[], help=meaning)
    meaning = "Sort by this field, smallest first; with a minus before it, as --sort=-hours, largest first."
    parser.add_argument("--sort", metavar="FIELD", help=meaning)
    meaning = "More fields to show, as learning_rate.peak,seed."
    parser.add_argument("--columns", metavar="A,B,...", type=tool_flags.names, default=[], help=meaning)
    parser.add_argument("--json", action="store_true", help="Print all fields of the runs as JSON.")


def main(args: argparse.Namespace) -> int:
    """Prints the table, and the runs that cannot be read to standard error; returns 1 if there is no run."""
    paths = args.paths or [Path("runs")]
    runs, problems = find.read_all(paths)
    rows = [selection.values(run) for run in runs]
    wanted = selection.conditions(args.where)
    if runs:
        chosen = selection.select(rows, wanted)
        chosen = selection.sort(chosen, args.sort) if args.sort and chosen else chosen
        if args.json:
            print(json.dumps(files.nan_to_null(chosen), indent=1, default=repr))
        elif chosen:
            asked = [each.name for each in wanted] + args.columns + [(args.sort or "run").lstrip("-")]
            known = list(dict.fromkeys(name for row in rows for name in row))
            print(tables.text(*table(runs, chosen, [selection.resolve(name, known) for name in asked])))
        else:
            print(f"None of the {len(runs)} runs satisfies --where.", file=sys.stderr)
    elif not problems:
        problems = [f"There is no run in {' '.join(map(str, paths))}: a run has a config.json. Give other directories."]
    for line in problems:
        print(f"tfdist runs: {line}", file=sys.stderr)
    return 0 if runs else 1


def table(
    runs: Sequence[RunState], rows: Sequence[dict[str, Any]], more: Sequence[str] = ()
) -> tuple[list[str], list[list[Any]]]:
    """Returns header and rows of a table of runs, with the best metrics of all `runs` and the fields `more` as columns.

    `rows` are those of `selection.values`, for the runs that are shown.
    """
    metrics = list(dict.fromkeys(run.config.get("checkpoint.best_metric") or "loss" for run in runs))
    metrics = [name for name in metrics if any(name in {**run.best, **run.train} for run in runs)]
    last = list(dict.fromkeys(["loss", *metrics]))
    fields = [*(f"best.{name}" for name in metrics), *(f"last.{name}" for name in last)]
    fields = [name for name in fields if any(row.get(name) is not None for row in rows)]
    fields += [name for name in dict.fromkeys(more) if name not in (*fields, *_SHOWN)]
    shown = []
    for row in rows:
        trouble = " ".join(row["trouble"].removeprefix("WARNING: ").split())
        trouble = trouble if len(trouble) <= _TROUBLE else trouble[: _TROUBLE - 3] + "..."
        progress = "/".join(lines.epochs(one) for one in (row["epoch"], row["epochs"]) if one is not None)
        start = [row["run"], row["state"], row["step"], "-" if row["epoch"] is None else progress]
        shown.append([*start, *map(row.get, fields), row["examples_per_second"], row["hours"], trouble])
    return ["run", "state", "step", "epoch", *fields, "examples/s", "hours", "trouble"], shown
