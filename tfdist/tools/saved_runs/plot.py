"""Draws curves of runs, or scaling studies: `python -m tfdist plot DIR...`.

DIR is the workdir of a run, during the run or after it: the loss, the other values of the objective and examples per
second are drawn by epoch, training and evaluation together, all runs in one picture. Or DIR is the workdir of `tfdist
scaling`: all studies are drawn in one picture, and what their time was spent on in another.

    python -m tfdist plot runs/digits
    python -m tfdist plot runs/digits runs/digits-large --values=loss,accuracy --out=comparison
    python -m tfdist plot runs/range --x=learning_rate
"""

import dataclasses
import os
from pathlib import Path

from absl import flags

from tfdist.config import saved_run
from tfdist.config.command_line import tool_words
from tfdist.tools import scaling_results, tables
from tfdist.tools.pictures import curves, scaling, style

USAGE = "DIR... [flags]"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_list("values", [], "The values to draw, as loss,accuracy. Default: all.")
    flags.DEFINE_enum("x", curves.EPOCH, [curves.EPOCH, curves.RATE], "What is on the horizontal axis.")
    flags.DEFINE_bool("log", False, "A logarithmic scale for the loss.")
    flags.DEFINE_string(
        "out", None, "The picture, without .png and .svg. Default: curves in DIR, or in the directory that holds all."
    )
    scaling_results.define_published()


parse = tool_words.need_words(1, "tfdist plot: give the workdir of a run, such as runs/digits.")


def main(argv: list[str]) -> None:
    """Draws the runs or the studies in the directories of the command line, and prints the names of the files."""
    values, given = flags.FLAGS, [Path(word).expanduser() for word in argv[1:]]
    # Of a script: the runs of its calls of `fit`.
    fits = {path: [] if (path / scaling_results.FILE).is_file() else saved_run.workdirs(path) for path in given}
    workdirs = [each for path in given for each in fits[path] or [path]]
    shared = workdirs[0] if len(workdirs) == 1 else Path(os.path.commonpath([path.absolute() for path in workdirs]))
    studies = [scaling_results.read(path) for path in workdirs if (path / scaling_results.FILE).is_file()]
    names = [study.name for study in studies]
    if len({*names}) < len(names):  # Of one config.
        studies = [dataclasses.replace(one, name=path.name) for one, path in zip(studies, workdirs, strict=False)]
    if studies and len(studies) < len(workdirs):
        others = [str(path) for path in workdirs if not (path / scaling_results.FILE).is_file()]
        raise ValueError(
            f"Give the workdirs of runs, or those of tfdist scaling. No finished study is in: {' '.join(others)}"
        )
    path = Path(values.out or shared / ("scaling" if studies else "curves")).expanduser()
    path = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    tables.make_folder(path.parent)
    if studies:
        studies += [scaling_results.read_published(name) for name in values.published]
        print(style.save(path, lambda: scaling.draw(studies)))
        if scaling.has_details(studies):
            print(style.save(path.with_name(f"{path.name}-details"), lambda: scaling.draw_details(studies)))
        return
    runs = [*curves.read(workdirs), *(run for name in values.published for run in curves.read_published(name))]
    if len(runs) > 1:
        print(tables.text(*curves.compare(runs)))
    said = style.save(path, lambda: curves.draw(runs, values.values, log=values.log, x=values.x))
    if said == style.MISSING:
        raise ValueError(said)
    print(said)
