"""Compares runs: `python -m tfdist compare DIR DIR ...`: what differs, and their metrics.

Each DIR is the workdir of a run, or a directory of several. Prints one table with the fields of the configs that
differ, the metrics, and the differences in code, versions, data and machines; then the first step at which the hashes
of the states differ. `tfdist plot` draws their curves.

    python -m tfdist compare runs/digits runs/digits-large
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.config import diff, tool_flags
from tfdist.report import files, run_info
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import run_state

USAGE = "DIR DIR... [flags]"
# More runs than this are rows and not columns of the table.
_MAX_COLUMNS = 5
# Entries of environment.json that are left out: they differ for every start, or repeat another entry.
_LEFT_OUT = ("time", "command", "directory", "config", "config_file", "workers", "settings")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("paths", metavar="DIR", nargs="+", type=tool_flags.path, help="Runs, or directories of them.")


def main(args: argparse.Namespace) -> int:
    """Prints the table and the sentence; returns 1 if there are no two runs to compare."""
    rows, problems = run_state.read_all(args.paths)
    for line in problems:
        print(f"tfdist compare: {line}", file=sys.stderr)
    if len(rows) < 2:
        print(f"tfdist compare: two runs are needed. Found: {len(rows)} below {args.paths[0]}.", file=sys.stderr)
        return 1
    workdirs = [Path(row["run"]) for row in rows]
    names = run_state.labels(workdirs)
    print(tables.text(*table(rows, names)))
    print(f"\n{first_difference(workdirs)}")
    return 0


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """Returns header and lines of a table with a column for each run, or with a line for each if they are many."""
    workdirs = [Path(row["run"]) for row in rows]
    known = dict.fromkeys(name for row in rows for name in row)
    metrics = [name for name in known if name.partition(".")[0] in ("best", "last", "training")]
    metrics = [name for name in metrics if not name.endswith((".epoch", ".step"))]
    shown = ("state", "step", *metrics, "examples_per_second", "hours")
    columns = [
        fields | {name: row.get(name) for name in shown} | about
        for fields, row, about in zip(
            run_state.differing([run_state.read_config(path) for path in workdirs]),
            rows,
            run_state.differing([_about(path) for path in workdirs]),
            strict=True,
        )
    ]
    fields = list(columns[0])
    if len(names) > _MAX_COLUMNS:
        return ["run", *fields], [[name, *each.values()] for name, each in zip(names, columns, strict=True)]
    return ["", *names], [[field, *(each[field] for each in columns)] for field in fields]


def _about(workdir: Path) -> dict[str, Any]:
    """Returns what a run was made of besides its config: commit, hashes of code and data, versions, processor."""
    environment = files.read_json(workdir / run_info.ENVIRONMENT) or {}
    hashes = child_runs.last_report(workdir, "data").get("hashes", {})
    kept = {name: value for name, value in environment.items() if name not in _LEFT_OUT}
    return dict(diff.flatten(kept | {"data": hashes}))


def first_difference(workdirs: Sequence[Path]) -> str:
    """Returns a sentence about the first step after which the states of the runs differ, by their hashes."""
    # For each run, (step, function of the hash) -> hashes: an evaluation or a restored checkpoint may change a state.
    hashes: list[dict[tuple[int, str], set[str]]] = []
    for workdir in workdirs:
        hashes.append({})
        for record in child_runs.reports(workdir, "state"):
            hashes[-1].setdefault((record["step"], record["function"]), set()).add(record["hash"])
    common = sorted(set.intersection(*map(set, hashes)))
    if not common:
        return "State: not compared, because there is no step after which all runs have a hash by the same function."
    before = ""
    for step, function in common:
        if not set.intersection(*(of_run[step, function] for of_run in hashes)):
            after = "" if before else ", the first after which all runs have a hash"
            reason = " Other fields, code or data, and other numbers of replicas, machines or versions can cause this."
            return f"State: {before}different at step {step}{after}.{reason}"
        before = f"equal until step {step}, "
    return f"State: {before}the last of {len(common)} after which all runs have a hash."
