"""Lists runs: `python -m tfdist runs [DIR...]`, a line for each run below the directories, `runs` by default.

A run is running, stopped (saved, the same command resumes it), finished, diverged, failed (by another error) or lost
(its process ended without recording why, or another worker was lost).

    python -m tfdist runs
    python -m tfdist runs sweeps/lr --where="learning_rate.peak>0.1" --where="state=finished" --sort=-best.accuracy

FIELD and NAME are a field of the config (learning_rate.peak, or the end of its name, peak), a metric (best.accuracy of
the best evaluation, last.accuracy of the last one, training.loss of the last report), or run, state, step, epoch,
epochs, examples_per_second, hours, replicas, job, trouble.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.config import tool_flags
from tfdist.report import lines
from tfdist.tools import tables
from tfdist.tools.many_runs import run_state

USAGE = "[DIR...] [flags]"
# Fields that every table has, before and after the metrics.
_FIRST, _LAST = ("run", "state", "step", "epoch"), ("examples_per_second", "hours", "trouble")
# The most characters of a warning or an error in the table.
_MAX_TROUBLE = 60
_CONDITION = re.compile(r"([\w.\-/ ]+?)\s*([=<>])\s*(.*)")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("paths", metavar="DIR", nargs="*", type=tool_flags.path, help="Where the runs are.")
    meaning = "Show only runs for which this holds: NAME=VALUE, NAME<VALUE or NAME>VALUE. May be repeated."
    parser.add_argument("--where", metavar="CONDITION", action="append", default=[], help=meaning)
    meaning = "Sort by this field, smallest first; with a minus before it, as --sort=-hours, largest first."
    parser.add_argument("--sort", metavar="FIELD", default="", help=meaning)
    meaning = "More fields to show, as learning_rate.peak,seed."
    parser.add_argument("--columns", metavar="A,B,...", type=tool_flags.names, default=[], help=meaning)


def main(args: argparse.Namespace) -> int:
    """Prints the table, and the runs that cannot be read to standard error; returns 1 if there is no run."""
    paths = args.paths or [Path("runs")]
    rows, problems = run_state.read_all(paths)
    if rows:
        wanted = [_condition(text, rows) for text in args.where]
        chosen = [row for row in rows if all(_holds(row.get(name), *rest) for name, *rest in wanted)]
        more = [name for name, _, _ in wanted] + [run_state.resolve(name, rows) for name in args.columns]
        if args.sort:
            by = run_state.resolve(args.sort.removeprefix("-"), rows)
            chosen, more = _sorted(chosen, by, descending=args.sort.startswith("-")), [*more, by]
        if chosen:
            print(tables.text(*table(rows, chosen, more)))
        else:
            print(f"None of the {len(rows)} runs satisfies --where.", file=sys.stderr)
    elif not problems:
        problems = [f"There is no run in {' '.join(map(str, paths))}: a run has a config.json. Give other directories."]
    for line in problems:
        print(f"tfdist runs: {line}", file=sys.stderr)
    return 0 if rows else 1


def _condition(text: str, rows: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """Returns the field, the operator and the value of a condition; raises ValueError if `text` is not a condition."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None or (match[2] != "=" and _number(match[3]) is None):
        raise ValueError(
            f"--where={text!r} is not a condition: write NAME=VALUE, NAME<NUMBER or NAME>NUMBER, such as "
            '"learning_rate.peak>0.1"; for a second condition a second --where.'
        )
    return run_state.resolve(match[1], rows), match[2], match[3].strip("'\"")


def _holds(value: Any, sign: str, wanted: str) -> bool:
    """Returns whether a condition holds."""
    number, limit = _number(value), _number(wanted)
    if sign == "=":
        return f"{value}".lower() == wanted.lower() or (number is not None and number == limit)
    return number is not None and (number < limit if sign == "<" else number > limit)


def _number(value: Any) -> float | None:
    with contextlib.suppress(ValueError, TypeError):
        return float(value)
    return None


def _sorted(rows: Sequence[dict[str, Any]], name: str, *, descending: bool) -> list[dict[str, Any]]:
    """Returns the rows sorted by a field, numbers before text; rows without the field come last."""
    there = [row for row in rows if row.get(name) is not None]
    there.sort(key=lambda row: (0, row[name], "") if tables.is_number(row[name]) else (1, 0, f"{row[name]}"))
    return [*(reversed(there) if descending else there), *(row for row in rows if row.get(name) is None)]


def table(
    rows: Sequence[dict[str, Any]], chosen: Sequence[dict[str, Any]], more: Sequence[str] = ()
) -> tuple[list[str], list[list[Any]]]:
    """Returns header and lines of a table of the rows `chosen`, with the best metrics of `rows` and fields `more`."""
    metrics = list(dict.fromkeys(row.get("checkpoint.best_metric") or "loss" for row in rows))
    fields = [*(f"best.{name}" for name in metrics), *(f"last.{name}" for name in dict.fromkeys(["loss", *metrics]))]
    fields = [name for name in fields if any(row.get(name) is not None for row in chosen)]
    fields += [name for name in dict.fromkeys(more) if name not in (*fields, *_FIRST, *_LAST)]
    shown = []
    for row in chosen:
        trouble = " ".join(row["trouble"].removeprefix("WARNING: ").split())
        trouble = trouble if len(trouble) <= _MAX_TROUBLE else trouble[: _MAX_TROUBLE - 3] + "..."
        progress = "/".join(lines.epochs(one) for one in (row["epoch"], row["epochs"]) if one is not None)
        shown.append([row["run"], row["state"], row["step"], progress or None])
        shown[-1] += [*map(row.get, fields), row["examples_per_second"], row["hours"], trouble]
    return [*_FIRST, *fields, "examples/s", "hours", "trouble"], shown
