"""Draws runs, or scaling studies: `python -m tfdist plot DIR...`.

DIR is the workdir of a run, during the run or after it: the loss, the other values of the objective and examples per
second by epoch, training and evaluation, all runs in one picture. --x is another column of the reports, or a field of
the config: then each run is a point. Of workdirs of `tfdist scaling`, all studies are drawn in one picture.

    python -m tfdist plot runs/digits
    python -m tfdist plot runs/digits runs/digits-large --y=loss,accuracy --out=comparison
    python -m tfdist plot runs/range --x=learning_rate --log
    python -m tfdist plot sweeps/lr --x=learning_rate.peak --y=best.accuracy
"""

import argparse
import collections
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.config import tool_flags
from tfdist.tools import scaling_results, tables
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import curves, scaling, style

USAGE = "DIR... [flags]"
# Over this ratio of the largest to the smallest number of a field, the x axis is logarithmic.
_WIDE = 20


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    meaning = "Workdirs of runs, directories of runs, or workdirs of tfdist scaling."
    parser.add_argument("given", metavar="DIR", nargs="+", type=tool_flags.path, help=meaning)
    meaning = "A column of the reports, as step or learning_rate, or a field of the config. Default: epoch."
    parser.add_argument("--x", metavar="NAME", default="epoch", help=meaning)
    meaning = "The values to draw, as loss,accuracy. Default: all. By a field: one, as best.accuracy."
    parser.add_argument("--y", metavar="A,B,...", type=tool_flags.names, default=[], help=meaning)
    parser.add_argument("--log", action="store_true", help="A logarithmic scale for the loss.")
    meaning = "The picture, without .png. Default: curves, or scaling, in the directory of all DIRs."
    parser.add_argument("--out", metavar="FILE", type=tool_flags.path, help=meaning)
    scaling_results.add_published(parser)


def main(args: argparse.Namespace) -> None:
    """Draws the runs or the studies in the directories of the command line, and prints the names of the files."""
    given = args.given
    studied = [path for path in given if (path / scaling_results.FILE).is_file()]
    if studied and len(studied) < len(given):
        others = " ".join(str(path) for path in given if path not in studied)
        raise ValueError(f"Give the workdirs of runs, or those of tfdist scaling. No finished study is in: {others}")
    problems: list[str] = []
    workdirs = studied or [each for path in given for each in [*run_state.workdirs(path, problems)] or [path]]
    shared = workdirs[0] if len(workdirs) == 1 else Path(os.path.commonpath([path.absolute() for path in workdirs]))
    path = args.out or shared / ("scaling" if studied else "curves")
    path = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    tables.make_folder(path.parent)
    said = _draw_studies(path, studied, args) if studied else _draw_runs(path, workdirs, args)
    if said == style.MISSING:
        raise ValueError(said)
    print(said)


def _draw_studies(path: Path, workdirs: Sequence[Path], args: argparse.Namespace) -> str:
    studies = [scaling_results.read(workdir) for workdir in workdirs]
    if len({study.name for study in studies}) < len(studies):  # Of one config.
        studies = [dataclasses.replace(one, name=path.name) for one, path in zip(studies, workdirs, strict=True)]
    studies += [scaling_results.read_published(name) for name in args.published]
    return style.save(path, lambda: scaling.draw(studies))


def _draw_runs(path: Path, workdirs: Sequence[Path], args: argparse.Namespace) -> str:
    x, y, rows = args.x, args.y, [run_state.read(workdir) for workdir in workdirs]
    reported = [path for path, row in zip(workdirs, rows, strict=True) if "training.step" in row]
    runs = curves.read(reported or workdirs)
    if any(x in record for run in runs for record in run.train):
        return style.save(path, lambda: curves.draw(runs, y, log=args.log, x=x))
    metric = rows[0].get("checkpoint.best_metric") or "loss"
    fields = [run_state.resolve(name, rows) for name in (x, *(y or [f"best.{metric}"]))]
    if len(fields) != 2:
        raise ValueError(f"--y={','.join(y)}: give one value by the field --x={x}, as --y=best.accuracy.")
    return style.save(path, lambda: draw_by_field(rows, *fields))


def draw_by_field(rows: Sequence[dict[str, Any]], x: str, y: str) -> Any:
    """Returns a figure of a value of runs by a field of their configs, a point for each run.

    Runs that differ only in `x` and the seed are a series: their mean as a line, smallest to largest as a band. Values
    of the field that are no numbers are named on the axis.
    """
    there = [row for row in rows if row.get(y) is not None]
    if not there:
        raise ValueError(f"--y={y}: no run has a value of it.")
    configs = [run_state.read_config(Path(row["run"])) for row in there]
    different = run_state.differing(configs)
    caption = "Line: the mean of runs that differ only in their seed; band: smallest to largest."
    caption += f" {len(rows) - len(there)} of {len(rows)} runs have no {y}." if len(there) < len(rows) else ""
    figure, (axes,) = style.figure(f"{y} by {x}", caption, size=(9.0, 5.4))
    numbers = all(tables.is_number(row.get(x)) for row in there)
    named = list(dict.fromkeys(str(row.get(x)) for row in there))
    by_series: dict[str, dict[Any, list[float]]] = {}
    for row, fields in zip(there, different, strict=True):
        name = curves.in_words({name: value for name, value in fields.items() if name not in (x, "seed")})
        place = row[x] if numbers else named.index(str(row.get(x)))
        by_series.setdefault(name, collections.defaultdict(list))[place].append(row[y])
    for index, (name, unordered) in enumerate(by_series.items()):
        by_place, look = dict(sorted(unordered.items())), style.series(index)
        points = [(place, value) for place, values in by_place.items() for value in values]
        axes.plot(*zip(*points, strict=True), linestyle="none", alpha=0.55, **look)
        means = [sum(values) / len(values) for values in by_place.values()]
        axes.plot(list(by_place), means, color=look["color"], label=name or None)
        low, high = ([function(values) for values in by_place.values()] for function in (min, max))
        axes.fill_between(list(by_place), low, high, color=look["color"], alpha=0.18, linewidth=0)
    places = [place for by_place in by_series.values() for place in by_place]
    if not numbers:
        axes.set_xticks(range(len(named)), named)
    elif min(places) > 0 and max(places) > _WIDE * min(places):
        axes.set_xscale("log")
    axes.set(xlabel=x, ylabel=y)
    if len(by_series) > 1:
        axes.legend(loc="best", frameon=True, edgecolor="none")
    return figure
