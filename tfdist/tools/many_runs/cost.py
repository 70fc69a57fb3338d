"""What the time of runs was spent on: `python -m tfdist cost DIR...`, over all starts of all runs below them.

Printed are wall-clock and replica-hours by cause, goodput (the part of the allocated replica-hours in steps that count)
and ETTR (the same part of the whole time, with that in Slurm's queue). Written are cost.png and cost.json. A step that
was repeated after a fault counts once. The times are those of the chief.

    python -m tfdist cost runs/digits
    python -m tfdist cost sweeps/lr --out=reports
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.config.command_line import tool_words
from tfdist.report import files, lines, read_back
from tfdist.tools import tables
from tfdist.tools.many_runs import bills, find, selection
from tfdist.tools.many_runs.bills import Bill
from tfdist.tools.pictures import curves, style

USAGE = "DIR... [flags]"
_JOULES_PER_KWH = 3.6e6
# More runs than this are not drawn one by one; the last bill, their sum, always is.
_MAX_BARS = 30
_SMALL = 0.002
_HATCHES = ("", "///", "...")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("out", None, "Directory of cost.png and cost.json. Default: the directory that holds all runs.")


parse = tool_words.need_words(1, "tfdist cost: give the workdirs of runs, or a directory of them, such as runs.")


def main(argv: list[str]) -> int:
    """Prints the tables, and writes the picture and the JSON file; returns 1 if no run has starts.jsonl."""
    paths = [Path(word).expanduser() for word in argv[1:]]
    runs, problems = find.read_all(paths)
    jobs = bills.job_starts(job for run in runs for job in bills.jobs_of(run.workdir))
    names = curves.labels([run.workdir for run in runs]) if runs else []
    named = zip(runs, names, strict=True)
    starts = {run.workdir: read_back.read_starts(run.workdir) for run in runs}
    found = {}
    for run, name in named:
        others = [start for workdir, of_run in starts.items() if workdir != run.workdir for start in of_run]
        found[run.workdir] = bills.of_run(run.workdir, name, jobs, state=run.state, others=others)
    without = [workdir for workdir, bill in found.items() if bill is None]
    problems += [f"{workdir} has no starts.jsonl: see docs/many-runs.md." for workdir in without]
    for line in problems:
        print(f"tfdist cost: {line}", file=sys.stderr)
    known = [bill for bill in found.values() if bill is not None]
    if not known:
        print(f"tfdist cost: no run has starts.jsonl below: {' '.join(map(str, paths))}", file=sys.stderr)
        return 1
    whole = bills.total(known, "all")
    if len(known) > 1:
        print(tables.text(*per_run(known)), end="\n\n")
    print(tables.text(*by_cause(whole)))
    print(f"\n{in_words(whole)}")
    folder = Path(flags.FLAGS.out or os.path.commonpath([workdir.absolute() for workdir in found])).expanduser()
    tables.make_folder(folder)
    files.write_json(folder / "cost.json", {"runs": [bill.to_json() for bill in known], "all": whole.to_json()})
    drawn = [*known, whole] if len(known) > 1 else known
    said = style.save(Path(selection.short(folder / "cost")), lambda: draw(drawn))
    print(f"wrote {selection.short(folder / 'cost.json')}" if said == style.MISSING else f"wrote {said}, cost.json")
    return 0


def per_run(known: Sequence[Bill]) -> tuple[list[str], list[list]]:
    """Returns header and rows of a table with a line for each run."""
    rows, (unit, length) = [], _unit(sum(known[0].seconds.values()))
    for bill in known:
        hours = sum(bill.seconds.values()) / length, sum(bill.replica_seconds.values()) / length
        energy = sum(bill.joules.values()) / _JOULES_PER_KWH if bill.joules else None
        rows.append([bill.name, bill.state, bill.starts, *hours, f"{bill.goodput:.1%}", f"{bill.ettr:.1%}", energy])
    return ["run", "state", "starts", unit, f"replica-{unit}", "goodput", "ETTR", "kWh"], rows


def by_cause(bill: Bill) -> tuple[list[str], list[list]]:
    """Returns header and rows of a table with a line for each cause, and their sum."""
    allocated, lasted = sum(bill.replica_seconds.values()), sum(bill.seconds.values())
    unit, length = _unit(lasted)
    rows = [
        [cause, seconds / length, bill.replica_seconds[cause] / length, f"{seconds / lasted:.1%}"]
        for cause, seconds in bill.seconds.items()
        if seconds > 0
    ]
    return ["", unit, f"replica-{unit}", "of the time"], [*rows, ["all", lasted / length, allocated / length, "100.0%"]]


def _unit(seconds: float) -> tuple[str, float]:
    """Returns the unit of a time in a table, and its seconds."""
    return ("hours", 3600.0) if seconds > 2 * 3600 else ("minutes", 60.0) if seconds > 2 * 60 else ("seconds", 1.0)


def in_words(bill: Bill) -> str:
    """Returns goodput, ETTR and energy as a sentence."""
    kwh = ", ".join(f"{value / _JOULES_PER_KWH:.3g} kWh ({name})" for name, value in bill.joules.items())
    return f"{bill.starts} starts, goodput {bill.goodput:.1%}, ETTR {bill.ettr:.1%}; energy: {kwh or 'not readable'}"


def draw(drawn: Sequence[Bill]) -> Any:
    """Returns a figure with a bar for each bill: the parts of its time by cause, the useful one first."""
    shown = drawn if len(drawn) <= _MAX_BARS else [drawn[-1]]
    caption = "Parts of the wall-clock time over all starts of each run."
    if len(shown) < len(drawn):
        caption += f" The sum of {len(drawn) - 1} runs."
    figure, (axes,) = style.figure("What the time was spent on", caption, size=(11.0, 1.6 + 0.45 * len(shown)))
    shares = [{cause: value / sum(bill.seconds.values()) for cause, value in bill.seconds.items()} for bill in shown]
    causes = [cause for cause in drawn[0].seconds if any(share.get(cause, 0.0) > _SMALL for share in shares)]
    causes.sort(key=lambda cause: cause != bills.COUNT)
    left = [0.0] * len(shown)
    for index, cause in enumerate(causes):
        widths = [share.get(cause, 0.0) for share in shares]
        hatch = _HATCHES[index // len(style.COLORS) % len(_HATCHES)]
        color = style.COLORS[index % len(style.COLORS)]
        axes.barh(range(len(shown)), widths, left=left, color=color, hatch=hatch, edgecolor="white", label=cause)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(shown)), [f"{bill.name}  {lines.duration(sum(bill.seconds.values()))}" for bill in shown])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside right upper")
    return figure
