"""Draws runs, or scaling studies: `python -m tfdist plot DIR...`.

DIR is the workdir of a run, during the run or after it. The picture shows all runs: the loss, the other values of the
objective and the examples per second, in training and in evaluation, by epoch or by another column of the reports. If
DIR is a workdir of `tfdist scaling`, the picture shows all studies.

    python -m tfdist plot runs/digits
    python -m tfdist plot runs/digits runs/digits-large --y=loss,accuracy --out=comparison
    python -m tfdist plot runs/range --x=learning_rate --log
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.config import tool_flags
from tfdist.tools import child_runs, scaling_results, tables
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import curves, scaling, style

USAGE = "DIR... [flags]"


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    meaning = "Workdirs of runs, directories of runs, or workdirs of tfdist scaling."
    parser.add_argument("given", metavar="DIR", nargs="+", type=tool_flags.path, help=meaning)
    meaning = "A column of the reports, as step or learning_rate. Default: epoch."
    parser.add_argument("--x", metavar="NAME", default="epoch", help=meaning)
    meaning = "The values to draw, as loss,accuracy. Default: all."
    parser.add_argument("--y", metavar="A,B,...", type=tool_flags.names, default=[], help=meaning)
    parser.add_argument("--log", action="store_true", help="A logarithmic scale for the loss.")
    meaning = "The picture, without .png. Default: curves, or scaling, in the directory that contains all DIRs."
    parser.add_argument("--out", metavar="FILE", type=tool_flags.path, help=meaning)


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
    # Before the directory is made: a run without reports is an error.
    runs = [] if studied else curves.read([each for each in workdirs if child_runs.reports(each)] or workdirs)
    tables.make_folder(path.parent)
    if studied:
        said = _draw_studies(path, studied)
    else:
        said = style.save(path, lambda: curves.draw(runs, args.y, log=args.log, x=args.x))
    if said == style.MISSING:
        raise ValueError(said)
    print(said)
    for line in problems:
        print(f"tfdist plot: {line}", file=sys.stderr)


def _draw_studies(path: Path, workdirs: Sequence[Path]) -> str:
    studies = [scaling_results.read(workdir) for workdir in workdirs]
    if len({study.name for study in studies}) < len(studies):  # Studies of the same config have the same name.
        studies = [dataclasses.replace(one, name=path.name) for one, path in zip(studies, workdirs, strict=True)]
    return style.save(path, lambda: scaling.draw(studies))
