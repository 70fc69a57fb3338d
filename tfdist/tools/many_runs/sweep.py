"""Trains with many values of fields, one run each: `python -m tfdist sweep --set FIELD=VALUES ...`.

    tfdist sweep --config=digits --set learning_rate.peak=0.05,0.1,0.2 --set seed=0..3 --workdir=sweeps/digits
    tfdist sweep --config=... --random=20 --set "optimizer.weight_decay=log(1e-5,1e-2)" --set seed=0..2 --workdir=...
    tfdist sweep --config=... --set ... --workdir=... --slurm="--nodes=1 --time=60 launch/slurm.sbatch"

VALUES are a list (0.1,0.2), a range of whole numbers (0..4), or with --random=N an interval to draw from:
log(1e-5,1e-2), uniform(0,1), int(16,256). Without --random every combination is one run. The workdir of a run is named
after its values; it has all that `tfdist train` writes, overrides.json and output.log.

The same command continues the unfinished runs; more values add runs. A run that fails is named, and the others go on.
With --slurm the runs are the tasks of one job array. Exit codes: 0 all runs are finished, or are in the queue; 1 some
failed or are not finished; 75 stopped.
"""

import argparse
import hashlib
import itertools
import math
import random
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfdist.cluster import interruption
from tfdist.config import load, schema, specs, tool_flags
from tfdist.launch import processes
from tfdist.report import files
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import run_state, sweep_jobs
from tfdist.tools.many_runs.sweep_jobs import Job
from tfdist.training import features

USAGE = "--config=FILE --set FIELD=VALUES... --workdir=DIR [flags]"
# In the workdir of the sweep: the config of all runs. In that of a run: its values.
_SHARED, _OVERRIDES = "sweep.json", "overrides.json"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_INTERVAL = re.compile(r"(uniform|log|int)\(([^,()]+),([^,()]+)\)")
_NOTATION = "a list (0.1,0.2), a range of whole numbers (0..4), log(1e-5,1e-2), uniform(0,1) or int(16,256)"
# The most runs, because all are checked before the first one starts.
_MAX_RUNS = 10_000
# The most characters in the name of a run.
_LONGEST_NAME = 120
# Exit codes after which the same command goes on from the newest checkpoint. It also does so after negative ones, which
# mean that a signal killed the run.
_MAY_GO_ON = (interruption.EXIT_STOPPED, interruption.EXIT_PEER_LOST, 130)

# Overrides of one run: field -> value as on a command line.
Overrides = dict[str, str]
# The values of a field; or a function that maps a fraction of the field's interval, 0 to 1, to a value.
Values = list[str] | Callable[[float], str]


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_config()
    meaning = "A field of the config and its values. May be repeated."
    parser.add_argument("--set", metavar="NAME=VALUES", action="append", default=[], help=meaning)
    parser.add_workdir("sweeps/NAME", "Directory of the sweep.")
    meaning = "Draw this many runs instead of taking all combinations; equal ones are one run."
    parser.add_argument("--random", metavar="N", type=tool_flags.at_least(1), help=meaning)
    meaning = "Runs at a time. Default: one for each GPU, or for two cores; all that Slurm starts."
    parser.add_argument("--max_at_once", metavar="N", type=tool_flags.at_least(1), help=meaning)
    meaning = "Submit one job array: options of sbatch and the batch file, in quotes, such as launch/slurm.sbatch."
    parser.add_argument("--slurm", metavar="WORDS", default="", help=meaning)
    parser.add_argument("--dry_run", action="store_true", help="Print the runs, and start none.")


def main(args: argparse.Namespace) -> int:
    """Runs the sweep that the flags name, or submits it; returns the exit code."""
    fields = dict(read_values(text) for text in args.set)
    _check_flags(args, fields)
    rows = draws(fields, args.random) if args.random else grid(fields)
    runs = {name_of(row): row for row in rows}
    configs = [_check(args, name, row) for name, row in runs.items()]
    best = configs[0].checkpoint
    metric, mode = (best.best_metric, best.best_mode) if best.best_metric else ("loss", "min")
    workdir = args.workdir.absolute()
    if args.dry_run:
        print("\n".join([*runs, f"{len(runs)} runs in {workdir}; none is started."]))
        return 0
    if args.slurm:
        sweep_jobs.check_slurm(args.slurm)
    on_cpu = any(config.cluster.gpus == 0 for config in configs)
    slots = [] if args.slurm else sweep_jobs.slots(args.max_at_once, on_cpu=on_cpu)
    _keep(workdir / _SHARED, {"config": args.config_words}, "another sweep")
    jobs = []
    for name, row in runs.items():
        _keep(workdir / name / _OVERRIDES, row, "a run with other values")
        words = [*args.config_words, *_flags_of_values(row), f"--workdir={workdir / name}"]
        jobs.append(Job(name, workdir / name, [sys.executable, "-m", "tfdist.main", *words]))

    def read_now(job: Job) -> dict[str, Any]:
        return read_end(job, metric)

    left = [job for job in jobs if read_now(job)["state"] not in ("finished", "running")]
    if args.slurm:
        return sweep_jobs.submit(workdir, jobs, left, args.slurm, args.max_at_once)
    print(f"{len(slots)} run(s) at a time, each with {slots[0].share}, in {workdir}", flush=True)
    stop: list[int] = []
    with processes.handle(processes.STOP_SIGNALS, stop.append):
        sweep_jobs.run_jobs(left, slots, stop, ended=lambda job: print(_in_words(read_now(job), metric), flush=True))
        return show([read_now(job) for job in jobs], metric, mode, stopped=bool(stop))


def _check_flags(args: argparse.Namespace, fields: Mapping[str, Values]) -> None:
    """Raises ValueError if there is nothing to vary, or the flags contradict each other."""
    if not fields:
        raise ValueError("there is nothing to vary: add --set FIELD=VALUES, such as --set seed=0..4.")
    if len(fields) < len(args.set):
        raise ValueError("--set has a field twice: write all its values in one list.")
    for name in map(load.name_of, args.config_words[1:]):
        if name in fields:
            raise ValueError(f"--config.{name} and --set {name} contradict each other: give one of them.")


def _keep(path: Path, value: dict[str, Any], what: str) -> None:
    """Writes a file; raises ValueError if it exists with different content: the workdir is then of another sweep."""
    saved = files.read_json(path, "choose another --workdir.")
    if saved not in (None, value):
        raise ValueError(
            f"{path.parent} holds {what}: {path.name} has {saved}, and not {value}. Choose another --workdir."
        )
    if saved is None:
        files.make_workdir(path.parent)
        files.write_json(path, value)


def read_values(text: str) -> tuple[str, Values]:
    """Reads `FIELD=VALUES`; raises ValueError if it has a different form, or an interval is empty."""
    name, _, values = text.partition("=")
    name, items, depth = name.strip().lstrip("-").removeprefix("config."), [""], 0
    if found := _INTERVAL.fullmatch(values):
        return name, _interval(name, *found.groups())
    for letter in values:  # Split at the commas that are in no bracket.
        depth += (letter in "([{") - (letter in ")]}")
        items = [*items, ""] if letter == "," and not depth else [*items[:-1], items[-1] + letter]
    items = [item.strip() for item in items]
    if not name or depth or not all(items) or re.match(r"\w+\(", items[0]):
        raise ValueError(f"--set must be FIELD=VALUES, with {_NOTATION}. Received: {text!r}")
    expanded: list[str] = []
    for item in items:
        found = _RANGE.fullmatch(item)
        if found and not 0 <= int(found[2]) - int(found[1]) < _MAX_RUNS:
            raise ValueError(f"--set {name}: the range {item} is empty, or has more than {_MAX_RUNS:,} numbers.")
        expanded += map(str, range(int(found[1]), int(found[2]) + 1)) if found else [item]
    return name, expanded


def _interval(name: str, kind: str, low: str, high: str) -> Callable[[float], str]:
    first, last = float(low), float(high)
    if not first < last < math.inf or (kind == "log" and first <= 0) or (kind == "int" and (first % 1 or last % 1)):
        need = {"log": ", both above 0", "int": ", both whole"}.get(kind, "")
        raise ValueError(f"--set {name}: {kind}({low},{high}) must have a lower and a higher number{need}.")
    if kind == "int":
        return lambda fraction: str(math.floor(first + fraction * (last - first + 1)))
    if kind == "log":
        return lambda fraction: f"{first * (last / first) ** fraction:.4g}"
    return lambda fraction: f"{first + fraction * (last - first):.4g}"


def grid(fields: Mapping[str, Values]) -> list[Overrides]:
    """Returns every combination of the values, the last field fastest; raises ValueError if a field has an interval."""
    for name, values in fields.items():
        if callable(values):
            raise ValueError(f"--set {name} is an interval, to draw from: add --random=N for N runs.")
    count = math.prod(len(values) for values in fields.values())
    if count > _MAX_RUNS:
        raise ValueError(f"--set: {count:,} runs are more than {_MAX_RUNS:,}: draw some of them with --random=N.")
    return [dict(zip(fields, row, strict=True)) for row in itertools.product(*fields.values())]


def draws(fields: Mapping[str, Values], count: int) -> list[Overrides]:
    """Returns `count` random combinations; some may be equal if the fields have few values.

    Draw i of a field depends on the field's name and i only: a larger `count` keeps the ones before.
    """

    def draw(name: str, index: int) -> str:
        values, fraction = fields[name], random.Random(f"0/{name}/{index}").random()
        return values(fraction) if callable(values) else values[int(fraction * len(values))]

    return [{name: draw(name, index) for name in fields} for index in range(count)]


def name_of(row: Overrides) -> str:
    """Returns the name of a run and its directory, such as "peak=0.1_seed=3".

    It has a hash if it would be too long, or have special characters.
    """
    ends = {name: name.rpartition(".")[2] for name in row}
    short = ends if len({*ends.values()}) == len(row) else {name: name for name in row}
    name = "_".join(f"{short[field]}={value}" for field, value in row.items())
    plain = re.sub(r"[^\w.+=-]+", "-", name, flags=re.ASCII)
    if plain == name and len(name) <= _LONGEST_NAME:
        return name
    return f"{plain[:_LONGEST_NAME]}_{hashlib.sha256(repr(row).encode()).hexdigest()[:6]}"


def _flags_of_values(row: Overrides) -> list[str]:
    """Returns the flags that set a run's values."""
    steps = ["--config.train.steps=none"] if "epochs" in row else []
    return steps + [f"--config.{'train.epochs' if name == 'epochs' else name}={value}" for name, value in row.items()]


def _check(args: argparse.Namespace, name: str, row: Overrides) -> schema.Config:
    """Returns the config of a run.

    Raises ValueError, with the name of the run and the message of `tfdist train` about the invalid field.
    """
    try:
        config = load.load(args.config_file, [*args.config_words[1:], *_flags_of_values(row)])
        features.validate_config(config)
        for field in {name.partition(".")[0] for name in row} & {"model", "optimizer", "objective"}:
            specs.check_names(getattr(config, field), field=f"config.{field}")
        return config
    except (ValueError, SystemExit) as error:
        raise ValueError(f"nothing was started, because the run {name} is invalid. {error}") from None


def read_end(job: Job, metric: str) -> dict[str, Any]:
    """Returns how a run stands: its name, state, epoch, best value of the metric, and why it has failed.

    The state is new, running, finished, failed, or stopped: to be continued. One that is damaged counts as failed.
    """
    end = {"name": job.name, "workdir": job.workdir, "state": "new", "epoch": None, "value": None}
    try:
        rows = [run_state.read(each) for each in run_state.workdirs(job.workdir, [])]
    except ValueError as error:
        return end | {"state": "failed", "trouble": str(error)}
    if rows:
        state = rows[0]["state"]
        end |= {"state": state if state in ("running", "finished") else "stopped", "epoch": rows[0]["epoch"]}
        end["value"] = rows[0].get(f"best.{metric}")
    code, log = sweep_jobs.exit_code(job.workdir), job.workdir / sweep_jobs.LOG
    if end["state"] in ("new", "stopped") and code is not None and code > 0 and code not in _MAY_GO_ON:
        last = child_runs.end_of(log).rpartition("\n")[2].strip()
        end |= {"state": "failed", "trouble": f"{last} (log: {log})"}
    return end


def _in_words(end: Mapping[str, Any], metric: str) -> str:
    value = "" if end["value"] is None else f", best {metric} {end['value']:.5g}"
    return f"{end['name']}: {end['state']}{value} {end.get('trouble', '')}".rstrip()


def show(ends: list[dict[str, Any]], metric: str, mode: str, *, stopped: bool) -> int:
    """Prints the table of the runs, the best one, and how to go on; returns the exit code of the sweep."""
    sign = -1 if mode == "max" else 1
    ends.sort(key=lambda end: (end["value"] is None, sign * (end["value"] or 0.0)))
    shown = [[end[name] for name in ("name", "state", "epoch", "value")] for end in ends]
    print(tables.text(("run", "state", "epoch", f"best {metric}"), shown))
    if ends[0]["value"] is not None:
        print(f"best: {ends[0]['workdir']} with {metric} {ends[0]['value']:.5g}")
    failed = [end for end in ends if end["state"] == "failed"]
    for end in failed:
        print(f"failed: {end['name']}: {end['trouble']}")
    left = sum(end["state"] not in ("finished", "failed") for end in ends)
    if left or stopped:
        print(f"{left} of {len(ends)} runs are not finished: run the same command again to continue.")
    return interruption.EXIT_STOPPED if stopped else int(bool(failed or left))
