"""What the time of runs was spent on: `python -m tfdist cost DIR...`, over all starts of all runs below them.

Printed are wall-clock and replica-hours by cause, goodput (the part of the allocated replica-hours in steps that count)
and ETTR (the same part of the whole time, with that in Slurm's queue). Written are cost.png and cost.json. A step that
was repeated after a fault counts once. The times are those of the chief.

    python -m tfdist cost runs/digits
    python -m tfdist cost sweeps/lr --out=reports
"""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfdist.config.command_line import tool_words
from tfdist.report import files, read_back
from tfdist.tools import tables
from tfdist.tools.many_runs import bills, find, selection
from tfdist.tools.many_runs.bills import Bill
from tfdist.tools.pictures import causes, curves, style

USAGE = "DIR... [flags]"
_JOULES_PER_KWH = 3.6e6


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("out", None, "Directory of cost.png and cost.json. Default: the directory that holds all runs.")


parse = functools.partial(
    tool_words.parse_words,
    least=1,
    wanted="tfdist cost: give the workdirs of runs, or a directory of them, such as runs.",
)


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
        others = [start for workdir, own in starts.items() if workdir != run.workdir for start in own]
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
    said = style.save(Path(selection.short(folder / "cost")), lambda: causes.draw(drawn))
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
