"""Trains with many values of fields or flags, one run each: `python -m tfdist sweep --set FIELD=VALUES ...`.

    tfdist sweep --config=digits --set learning_rate.peak=0.05,0.1,0.2 --set seed=0..3 --workdir=sweeps/digits
    tfdist sweep --config=... --random=20 --set "optimizer.weight_decay=log(1e-5,1e-2)" --set seed=0..2 --workdir=...
    tfdist sweep --script="my_script.py --epochs=3" --set lr=0.1,0.01 --workdir=sweeps/mine
    tfdist sweep --config=... --set ... --workdir=... --slurm=launch/slurm.sbatch --nodes=1 --max-at-once=8

VALUES are a list (0.1,0.2), a range of whole numbers (0..4), or with --random=N an interval to draw from:
log(1e-5,1e-2), uniform(0,1), int(16,256). Without --random every combination is one run. The workdir of a run has the
name of its values, with all that `tfdist train` writes, its overrides.json and its output.log. A config may have a
get_sweep() that returns the fields with their values.

The same command again runs what is not finished; more values add runs. A run that fails is named, and the others go on.
With --slurm the runs are the tasks of one job array; options of sbatch, such as --time=60 or --account=abc, are passed
on. Exit codes: 0 all runs are finished, or are in the queue; 1 some failed; 75 stopped.
"""

import dataclasses
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.checkpoint import workdir_lock
from tfdist.cluster import interruption
from tfdist.config import flags as config_flags
from tfdist.config import saved_run, schema, user_code
from tfdist.config.command_line import tool_words, words
from tfdist.tools import tables
from tfdist.tools.many_runs.sweeps import array, ends, local, space
from tfdist.tools.many_runs.sweeps import plan as plans
from tfdist.tools.many_runs.sweeps.plan import Plan
from tfdist.training import features

USAGE = "--config=FILE --set FIELD=VALUES... --workdir=DIR [flags]"
# Runs of a table on the terminal.
_MAX_ROWS = 40
# Seconds between two signs of life of a sweep.
_HEARTBEAT_SECONDS = 10.0


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_string("script", None, "In place of --config: a Keras script with its own flags, in quotes.")
    flags.DEFINE_multi_string("set", [], "A field of the config, or a flag of the script, and its values: NAME=VALUES.")
    flags.DEFINE_string("workdir", None, "Directory of the sweep. Default: sweeps/NAME for a config NAME.py.")
    flags.DEFINE_integer("random", None, "Draw this many runs instead of taking all combinations.", lower_bound=1)
    flags.DEFINE_integer("draw_seed", 0, "Another seed draws other runs.")
    flags.DEFINE_string("metric", None, "The evaluation's value to compare. Default: checkpoint.best_metric, or loss.")
    flags.DEFINE_enum("mode", None, ["max", "min"], "Which values of it are better. Default: checkpoint.best_mode.")
    text = "Runs at a time. Default: one for each GPU, or for two cores; all that Slurm starts."
    flags.DEFINE_integer("max_at_once", None, text, lower_bound=1)
    flags.DEFINE_string("slurm", None, "Submit the runs as one job array with this batch file: launch/slurm.sbatch.")
    flags.DEFINE_bool("dry_run", False, "Print the runs, and start none.")


def parse(argv: list[str]) -> list[str]:
    """Parses the command line: also with hyphens in names, and with options of sbatch, which it returns."""
    given, options = array.divide([re.sub(r"^--[\w-]+", lambda name: _underscores(name[0]), word) for word in argv[1:]])
    sys.argv[1:] = given
    if not any(flag.name == "script" for flag in words.read_flags(given)):
        config_flags.parse([argv[0], *given])
    elif words.config_path(given):
        sys.exit("tfdist sweep: give either --config or --script.")
    else:
        config_flags.flags_only(tool_words.parse_words([argv[0], *given])[1:])
    if options and not flags.FLAGS.slurm:
        sys.exit(f"tfdist sweep: {options[0]} is an option of sbatch: add --slurm=launch/slurm.sbatch.")
    return [argv[0], *options]


def _underscores(name: str) -> str:
    plain = "--" + name[2:].replace("-", "_")
    return plain if plain[2:] in flags.FLAGS else name


def main(argv: list[str]) -> int:
    """Runs the sweep that the flags name, or submits it; returns the exit code."""
    made, configs = make_plan()
    workdir = _workdir()
    if flags.FLAGS.dry_run:
        plan = plans.merge(plans.read(workdir), made, workdir)
        print("\n".join([*plan.runs, f"{len(plan.runs)} runs in {workdir}; none is started."]))
        return 0
    on_cpu = any(config.cluster.gpus == 0 for config in configs)
    if flags.FLAGS.slurm:
        array.check(flags.FLAGS.slurm)
    slots = [] if flags.FLAGS.slurm else local.slots(flags.FLAGS.max_at_once, on_cpu=on_cpu)
    with local.signals() as stop:
        lock = workdir_lock.acquire(
            workdir,
            job="",
            heartbeat_seconds=_HEARTBEAT_SECONDS,
            wait_seconds=4 * _HEARTBEAT_SECONDS,  # Until one of another boot or host is known to be dead.
            lost=lambda other: stop.append(signal.SIGTERM),
            log=lambda text: print(f"tfdist sweep: {text}", file=sys.stderr, flush=True),
        )
        try:
            plan = plans.merge(plans.read(workdir), made, workdir)
            plans.write(workdir, plan)
            if flags.FLAGS.slurm:
                return array.submit(plan, workdir, flags.FLAGS.slurm, argv[1:], flags.FLAGS.max_at_once)
            return run_here(plan, workdir, slots, stop)
        finally:
            lock.release()


def make_plan() -> tuple[Plan, list[schema.Config]]:
    """Returns the plan that the flags describe, and the configs of its runs; none for a script.

    Raises ValueError if there is nothing to vary, or a run would be refused.
    """
    values = flags.FLAGS
    path = "" if values.script else config_flags.config_file()
    fields = space.as_fields(_given_space(path), values.set)
    if not fields:
        raise ValueError("there is nothing to vary: add --set FIELD=VALUES, such as --set seed=0..4.")
    shared = tuple(words.config_arguments(sys.argv[1:]))
    fixed = {*words.overrides(shared)}
    twice = next((field.name for field in fields if field.name in fixed), None)
    if twice:
        raise ValueError(f"--config.{twice} and --set {twice} contradict each other: give one of them.")
    rows = space.draws(fields, values.random, values.draw_seed) if values.random else space.grid(fields)
    plan = Plan(
        config=shared,
        script=tuple(shlex.split(values.script or "")),
        runs=dict(zip(space.names(rows), rows, strict=True)),
    )
    if values.script:
        if not Path(plan.script[0]).is_file():
            raise ValueError(f"--script={values.script}: there is no file {plan.script[0]}.")
        configs = []
    else:
        configs = _check({name: [*shared, *plan.overriding(row)] for name, row in plan.runs.items()})
    metric, mode = _metric(configs)
    return dataclasses.replace(plan, metric=metric, mode=mode), configs


def _check(runs: Mapping[str, Sequence[str]]) -> list[schema.Config]:
    """Returns the config of each run, given its name and the words that name the config and override its fields.

    Raises ValueError, which names the run, and says as `tfdist train` which of its fields does not exist or is invalid.
    """
    configs = []
    before = list(sys.argv)
    try:
        for name, given in runs.items():
            try:
                configs.append(_parse(given))
            except (ValueError, SystemExit) as error:
                raise ValueError(f"nothing was started, because the run {name} is invalid. {error}") from None
    finally:
        sys.argv[:] = before
    return configs


def _parse(given: Sequence[str]) -> schema.Config:
    overrides = [name for name in flags.FLAGS if name.startswith("config.")]
    flags.FLAGS.remove_flag_values(overrides)  # Those of another run.
    sys.argv[1:] = words.complete(list(given))
    config_flags.parse(sys.argv)
    config = flags.FLAGS["config"].value
    features.check(config)
    return config


def _given_space(path: str) -> dict[str, Any]:
    """Returns what `get_sweep()` of a config file, the value of --config, returns; {} where it has no such function.

    Raises ValueError if it returns no dict, or fails.
    """
    file = path.partition(":")[0]
    if not file.endswith(".py"):
        return {}
    try:
        function = runpy.run_path(file).get("get_sweep")
        found = {} if function is None else function()
    except Exception as error:
        raise ValueError(f"get_sweep() of {file}: {user_code.explain(error) or error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f'get_sweep() of {file} must return a dict, as {{"seed": [0, 1]}}. Received: {found!r}')
    return found


def _metric(configs: Sequence[schema.Config]) -> tuple[str, str]:
    """Returns the name of the value to compare, and which values are better: those of the flags, or of the config."""
    values, options = flags.FLAGS, configs[0].checkpoint if configs else schema.Checkpoint()
    metric = values.metric or options.best_metric or "loss"
    known = {"loss": "min"} | ({options.best_metric: options.best_mode} if options.best_metric else {})
    mode = values.mode or known.get(metric)
    if mode is None:
        raise ValueError(f"--metric={metric}: say which values are better, with --mode=max or --mode=min.")
    return metric, mode


def _workdir() -> Path:
    values = flags.FLAGS
    if values.script and not values.workdir:
        raise ValueError("--script needs --workdir, the directory of the sweep.")
    name = "" if values.script else config_flags.config_name()
    if name and Path(config_flags.config_file()).name == saved_run.FILE:  # The workdir of a run was given.
        name = Path(config_flags.config_file()).absolute().parent.name
    return Path(values.workdir or f"sweeps/{name}").expanduser().absolute()


def run_here(plan: Plan, workdir: Path, slots: Sequence[local.Slot], stop: Sequence[int]) -> int:
    """Runs what is not finished on this machine, until there are signals in `stop`; returns the exit code."""
    print(f"{len(slots)} run(s) at a time, each with {slots[0].share}, in {workdir}", flush=True)
    left = [name for name in plan.runs if ends.read(plan, workdir, name).state != "finished"]

    def say_end(job: local.Job, code: int) -> None:
        ends.write(job.workdir, code)
        end = ends.read(plan, workdir, job.name)
        value = "" if end.value is None else f", best {plan.metric} {end.value:.5g}"
        trouble = f" ({end.trouble}; log: {job.workdir / ends.LOG})" if end.trouble else ""
        print(f"{job.name}: {end.state}{value}{trouble}", flush=True)

    local.run_jobs(jobs(plan, workdir, left), slots, stop, ended=say_end, directory=plan.directory)
    return show(plan, workdir, bool(stop))


def jobs(plan: Plan, workdir: Path, names: Sequence[str]) -> Iterator[local.Job]:
    """Yields the jobs of runs, and says that each is started."""
    for index, name in enumerate(names, 1):
        plans.make_run(workdir / name, plan.runs[name])
        print(f"{name}: started ({index} of {len(names)})", flush=True)
        yield local.Job(name, workdir / name, plan.command(workdir / name, plan.runs[name]))


def show(plan: Plan, workdir: Path, stopped: bool) -> int:
    """Prints the table of the runs, the best one, and how to go on; returns the exit code of the sweep.

    Raises ValueError if no evaluation has the metric.
    """
    found = [ends.read(plan, workdir, name) for name in plan.runs]
    sign = -1 if plan.mode == "max" else 1
    found.sort(key=lambda end: (end.value is None, sign * (end.value or 0.0)))
    rows = [(end.name, end.state, end.epoch, end.value) for end in found]
    print(tables.text(("run", "state", "epoch", f"best {plan.metric}"), rows[:_MAX_ROWS]))
    if len(rows) > _MAX_ROWS:
        print(f"... and {len(rows) - _MAX_ROWS} more: tfdist runs {shlex.quote(str(workdir))}")
    best = found[0] if found else None
    if best is not None and best.value is not None:
        print(f"best: {best.workdir} with {plan.metric} {best.value:.5g}")
    failed = [end for end in found if end.state == "failed"]
    for end in failed:
        print(f"failed: {end.name}: {end.trouble} (log: {end.workdir / ends.LOG})")
    open_runs = [end for end in found if end.state not in ("finished", "failed")]
    if open_runs or stopped:
        print(f"{len(open_runs)} of {len(found)} runs are not finished: run the same command again to continue.")
    ends.check_metric(plan, workdir)
    return interruption.EXIT_STOPPED if stopped else int(bool(failed or open_runs))
