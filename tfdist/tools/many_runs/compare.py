"""Compares runs: `python -m tfdist compare DIR DIR ...`: what differs, their metrics, pictures and a page.

Each DIR is the workdir of a run, or a directory of several. Printed are only the fields of the configs that differ, the
metrics side by side, whether code, versions, data or machines differ, and the first step at which the states do.
Written are curves.png, a scatter of a metric over a field (scatter.png; runs that differ only in their seed make a
band), and compare.html, which holds all of it in one file.

    python -m tfdist compare runs/digits runs/digits-large
    python -m tfdist compare sweeps/lr --x=learning_rate.peak --y=best.accuracy --out=sweeps/lr
"""

import base64
import html
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.config.command_line import tool_words
from tfdist.report import files, metrics_file
from tfdist.tools import tables
from tfdist.tools.many_runs import differences, find, selection
from tfdist.tools.many_runs.run_state import RunState
from tfdist.tools.pictures import curves, scatter, style

USAGE = "DIR DIR... [flags]"
# More runs than this are rows and not columns of a table.
_MAX_COLUMNS = 5
# More runs than this are not drawn as curves.
_MAX_CURVES = 14
SEED = "seed"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("x", None, "The field of the scatter's x axis. Default: the field that differs.")
    flags.DEFINE_string("y", None, "The metric of its y axis. Default: that of config.checkpoint.best_metric.")
    flags.DEFINE_string("out", None, "Directory of pictures and page. Default: the directory that holds all DIRs.")


parse = tool_words.need_words(1, "tfdist compare: give the workdirs of runs, such as runs/digits runs/digits-large.")


def main(argv: list[str]) -> int:
    """Prints the tables, and writes the pictures and the page; returns 1 if there are no two runs to compare."""
    runs, problems = find.read_all([Path(word).expanduser() for word in argv[1:]])
    for line in problems:
        print(f"tfdist compare: {line}", file=sys.stderr)
    if len(runs) < 2:
        print(f"tfdist compare: two runs are needed. Found: {len(runs)} below {' '.join(argv[1:])}.", file=sys.stderr)
        return 1
    names = curves.labels([run.workdir for run in runs])
    different = differences.fields([dict(run.config) for run in runs])
    fields = "No field of the configs differs."
    if different[0]:
        rows = [list(one.values()) for one in different]
        fields = _side_by_side("Fields that differ", list(different[0]), names, rows)
    states = differences.states([run.workdir for run in runs], names)
    parts = [fields, _metrics_table(runs, names), *_aspects(runs, names), states]
    print("\n\n".join(part if isinstance(part, str) else f"{part[0]}\n{tables.text(*part[1:])}" for part in parts))
    folder = Path(flags.FLAGS.out or os.path.commonpath([run.workdir.absolute() for run in runs])).expanduser()
    tables.make_folder(folder)
    pictures = _draw(folder, runs, names, different)
    body = [_as_html(part) for part in (f"{len(runs)} runs: {' '.join(argv[1:])}", *parts)]
    body += [_picture(title, path) for title, path in pictures.items()]
    files.replace_file(folder / "compare.html", _page(body).encode())
    print("\nwrote " + ", ".join(selection.short(path) for path in [*pictures.values(), folder / "compare.html"]))
    return 0


# A table with its title, or a text.
Part = tuple[str, list[str], list[list[Any]]] | str


def _metrics_table(runs: Sequence[RunState], names: Sequence[str]) -> Part:
    wanted = ["state", "step", "examples_per_second", "hours"]
    rows = [selection.values(run) for run in runs]
    metrics = [name for row in rows for name in row if name.split(".")[0] in ("best", "last", "training")]
    configs = {name for run in runs for name in run.config}
    metrics = [name for name in dict.fromkeys(metrics) if name not in configs and not name.endswith(".epoch")]
    metrics = [name for name in metrics if name not in ("last.step", "training.step")]
    fields = [*wanted[:2], *metrics, *wanted[2:]]
    return _side_by_side("State and metrics", fields, names, [[row.get(name) for name in fields] for row in rows])


def _side_by_side(title: str, fields: Sequence[str], names: Sequence[str], values: Sequence[Sequence[Any]]) -> Part:
    """Returns a table with a column for each run, or with a row for each if they are many."""
    if len(names) > _MAX_COLUMNS:
        return title, ["run", *fields], [[name, *row] for name, row in zip(names, values, strict=True)]
    rows = zip(fields, zip(*values, strict=True), strict=True)
    return title, ["", *names], [[field, *column] for field, column in rows]


def _aspects(runs: Sequence[RunState], names: Sequence[str]) -> list[Part]:
    """Returns a table of what differs besides the configs, and a sentence about the rest."""
    found = differences.aspects([run.workdir for run in runs])
    different = {name: values for name, values in found.items() if len({*values}) > 1}
    parts: list[Part] = []
    if different:
        values = list(zip(*different.values(), strict=True))
        parts.append(_side_by_side("What else differs", list(different), names, values))
    known = [name for name, values in found.items() if name not in different and values[0] != "-"]
    changed = "code" in known and found["code"][0].endswith("changed")  # By what is not known.
    hint = " The code had changes that were not committed, which may differ." if changed else ""
    return [*parts, *([f"Equal: {', '.join(known)}.{hint}"] if known else [])]


def _draw(
    folder: Path, runs: Sequence[RunState], names: Sequence[str], different: Sequence[dict[str, Any]]
) -> dict[str, Path]:
    """Writes the pictures; returns their files by title."""
    pictures = {}
    reported = [run for run in runs if run.train and (run.workdir / metrics_file.METRICS).is_file()]
    if 0 < len(reported) <= _MAX_CURVES:
        drawn = curves.read([run.workdir for run in reported])
        if style.save(folder / "curves", lambda: curves.draw(drawn)) == style.MISSING:
            print(style.MISSING)
            return {}
        pictures["Curves"] = folder / "curves.png"
    elif reported:
        print(f"\n{len(reported)} runs are too many for curves: tfdist plot draws those that you name.")
    x, y = _axes(runs, different)
    if x is None:
        return pictures
    points, without = _points(runs, different, x, y)
    missing = y if _is_field(runs, x) else f"{y} or {x}"
    left_out = f" Without a value of {missing}: {', '.join(names[index] for index in without)}." if without else ""
    repeated = len({(str(point.x), point.series) for point in points}) < len(points)
    shared = "Line: mean over the seeds; band: smallest to largest." if repeated else ""
    if points:
        saved = style.save(folder / "scatter", lambda: scatter.draw(points, x=x, y=y, caption=shared + left_out))
        if saved == style.MISSING:
            print(style.MISSING)
            return {}
        pictures[f"{y} by {x}"] = folder / "scatter.png"
    return pictures


def _axes(runs: Sequence[RunState], different: Sequence[dict[str, Any]]) -> tuple[str | None, str]:
    """Returns the fields of the scatter's axes; None: nothing differs. Raises as `selection.resolve`."""
    known = list(dict.fromkeys(name for run in runs for name in selection.values(run)))
    metric = next((run.config.get("checkpoint.best_metric") for run in runs), None) or "loss"
    best = f"best.{metric}" if f"best.{metric}" in known else f"training.{metric}"
    y = selection.resolve(flags.FLAGS.y, known) if flags.FLAGS.y else best
    if flags.FLAGS.x:
        return selection.resolve(flags.FLAGS.x, known), y
    counts = {name: len({str(one[name]) for one in different}) for name in different[0] if name != SEED}
    fields = sorted(counts, key=lambda name: -counts[name])
    return (fields[0] if fields else SEED if SEED in different[0] else None), y


def _points(
    runs: Sequence[RunState], different: Sequence[dict[str, Any]], x: str, y: str
) -> tuple[list[scatter.Point], list[int]]:
    """Returns a point for each run, and the indices of the runs without one; a field may be None, which is a place."""
    points, without = [], []
    for index, (run, differing) in enumerate(zip(runs, different, strict=True)):
        values = selection.values(run)
        if values.get(y) is None or (values.get(x) is None and not _is_field(runs, x)):
            without.append(index)
            continue
        others = {name: value for name, value in differing.items() if name not in (x, SEED)}
        series = ", ".join(differences.in_words(others, 3))
        points.append(scatter.Point(x=values.get(x), y=values[y], series=series))
    return points, without


def _is_field(runs: Sequence[RunState], name: str) -> bool:
    return any(name in run.config for run in runs)


def _as_html(part: Part) -> str:
    if isinstance(part, str):
        return f"<p class=note>{html.escape(part)}</p>"
    title, header, rows = part
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return (
        f"<h2>{html.escape(title)}</h2>\n<div class=wide><table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    kind = " class=number" if tables.is_number(value) else ""
    return f"<td{kind}>{html.escape(tables.format_value(value))}</td>"


def _picture(title: str, path: Path) -> str:
    content, name = base64.b64encode(path.read_bytes()).decode(), html.escape(title)
    return f'<h2>{name}</h2>\n<p><img alt="{name}" src="data:image/png;base64,{content}"></p>'


def _page(parts: Sequence[str]) -> str:
    """Returns an HTML page of `parts` that needs no other file."""
    look, title = Path(__file__).with_suffix(".css").read_text(), "Comparison of runs"
    head = f'<meta charset="utf-8"><title>{title}</title><style>\n{look}</style>'
    body = "\n".join([f"<h1>{title}</h1>", *parts])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
