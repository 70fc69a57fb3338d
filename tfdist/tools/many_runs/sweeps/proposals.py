"""Runs whose values Optuna proposes from the results so far, and stops early: `--suggest`, with the extra `sweeps`.

The study is `optuna.log` in the workdir of the sweep, a file to which several processes may append at once, also on a
network file system. A trial of the study is a run; it keeps its number, so that an interrupted one is resumed.
"""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.config import specs
from tfdist.tools.many_runs.sweeps import ends, local, space
from tfdist.tools.many_runs.sweeps import plan as plans
from tfdist.tools.many_runs.sweeps.plan import Plan
from tfdist.tools.many_runs.sweeps.space import Field, Interval

FILE = "optuna.log"
_STUDY = "sweep"
# Trials of a rehearsal: GPSampler draws the first ten at random.
_REHEARSED = 12
# An attribute of a trial: the task of a job array that it belongs to.
_TASK = "task"


def define_flags() -> None:
    """Defines the flags of Optuna's part."""
    flags.DEFINE_integer("suggest", None, "Let Optuna propose this many runs, one after another.", lower_bound=1)
    flags.DEFINE_string("sampler", "TPESampler", "With --suggest: a class of optuna.samplers.")
    flags.DEFINE_string("pruner", "NopPruner", "With --suggest: a class of optuna.pruners, which stops bad runs early.")


def describe(fields: Sequence[Field]) -> dict[str, Any]:
    """Returns Optuna's part of the plan, from the flags; raises ValueError if Optuna cannot be used."""
    values = flags.FLAGS
    part = {"count": values.suggest, "sampler": values.sampler, "pruner": values.pruner, "seed": values.draw_seed}
    part["space"] = {
        field.name: [field.interval.kind, field.interval.low, field.interval.high]
        if field.interval
        else {"values": list(field.values)}
        for field in fields
    }
    rehearse(part)
    return part


def rehearse(part: dict[str, Any]) -> None:
    """Uses the sampler and the pruner with invented results, in memory: what they lack may show after some runs only.

    Raises ValueError if they need another package, or cannot propose these fields.
    """
    sampler, pruner = _make_parts(part)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rehearsal = optuna.create_study(sampler=sampler, pruner=pruner)
    for number in range(min(part["count"], _REHEARSED)):
        with _explain("sampler", part):
            trial = rehearsal.ask(_distributions(part))
        with _explain("pruner", part):
            for epoch in range(1, 4):
                trial.report(float(number), epoch)
                trial.should_prune()
        with _explain("sampler", part):
            rehearsal.tell(trial, float(number))


@contextlib.contextmanager
def _explain(name: str, part: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"--{name}={part[name]} needs the package {error.name}: pip install {error.name}, or choose another."
        raise ValueError(text) from None
    except Exception as error:
        raise ValueError(f"--{name}={part[name]} cannot be used for this sweep: {error} Choose another.") from None


def _make_parts(part: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the sampler and the pruner."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise ValueError("--suggest needs Optuna: pip install 'tfdist[sweeps]', or draw with --random=N.") from None
    found = []
    for name, module in (("sampler", optuna.samplers), ("pruner", optuna.pruners)):
        kind = getattr(module, part[name], None)
        if kind is None or not isinstance(kind, type):
            kinds = [each for each in module.__all__ if each[0].isupper() and not each.startswith("Base")]
            hint = specs.nearest(part[name], kinds)
            raise ValueError(f"--{name}={part[name]}: there is no such class in optuna.{name}s.{hint}")
        seed = {"seed": part["seed"]} if "seed" in inspect.signature(kind).parameters else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                found.append(kind(**seed))
        except TypeError as error:
            raise ValueError(f"--{name}={part[name]} needs more than its name, so choose another: {error}") from None
    return found[0], found[1]


def study(plan: Plan, workdir: Path, draw: int = 0) -> Any:
    """Opens the study of the sweep, or begins it; with another `draw`, its sampler draws other random numbers."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler, pruner = _make_parts(plan.proposals | {"seed": plan.proposals["seed"] + draw})
    storage = _storage(workdir)
    direction = "maximize" if plan.mode == "max" else "minimize"
    return optuna.create_study(
        study_name=_STUDY, storage=storage, sampler=sampler, pruner=pruner, direction=direction, load_if_exists=True
    )


def _storage(workdir: Path) -> Any:
    from optuna.storages import JournalStorage, journal

    path = str(workdir / FILE)
    # The lock is a link, which also network file systems make atomically.
    return JournalStorage(journal.JournalFileBackend(path, lock_obj=journal.JournalFileSymlinkLock(path)))


def _distributions(part: dict[str, Any]) -> dict[str, Any]:
    from optuna import distributions as kinds

    found = {}
    for name, given in part["space"].items():
        if isinstance(given, dict):
            found[name] = kinds.CategoricalDistribution(given["values"])
            continue
        interval = Interval(*given)
        if interval.kind == "int":
            found[name] = kinds.IntDistribution(int(interval.low), int(interval.high))
        else:
            found[name] = kinds.FloatDistribution(interval.low, interval.high, log=interval.kind == "log")
    return found


def _name(trial: Any) -> str:
    """Returns the name of the run of a trial: "trial-003_peak=0.0123"; it depends on the trial only."""
    row = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in trial.params.items()}
    return f"trial-{trial.number:03d}_{space.names([row])[0]}"


def names(workdir: Path, plan: Plan) -> list[str]:
    """Returns the runs that have been proposed so far."""
    return [_name(trial) for trial in _whole(study(plan, workdir).trials, plan)]


def _whole(trials: Iterable[Any], plan: Plan) -> list[Any]:
    """Returns the trials that have all values: a process may have been killed while it proposed one."""
    return [trial for trial in trials if trial.params.keys() == plan.proposals["space"].keys()]


def run_here(
    plan: Plan, workdir: Path, slots: Sequence[local.Slot], stop: Sequence[int], said: Callable[[local.Job, int], None]
) -> None:
    """Runs the trials on this machine: those that were interrupted, then new ones until there are as many as wanted."""
    # After an interruption it does not draw the same numbers again.
    opened = study(plan, workdir, draw=len(study(plan, workdir).trials))
    numbers: dict[str, int] = {}
    given_up: set[str] = set()

    def jobs() -> Iterator[local.Job]:
        from optuna.trial import TrialState

        unfinished = [trial for trial in opened.trials if not trial.state.is_finished()]
        whole = _whole(unfinished, plan)
        for trial in unfinished:
            if trial not in whole:
                opened.tell(trial.number, state=TrialState.FAIL)
        yield from map(job, whole)
        while len(_whole(opened.trials, plan)) < plan.proposals["count"]:
            yield job(opened.ask(_distributions(plan.proposals)))

    def job(trial: Any) -> local.Job:
        name = _name(trial)
        numbers[name] = trial.number
        place = len(_whole(opened.trials[: trial.number + 1], plan))
        print(f"{name}: started ({place} of {plan.proposals['count']})", flush=True)
        return local.Job(name, workdir / name, _command(plan, workdir / name, trial))

    def end(job: local.Job, code: int) -> None:
        said(job, code)
        tell(opened, numbers[job.name], plan, job.workdir, pruned=job.name in given_up)

    def watch(job: local.Job) -> bool:
        if should_stop(opened, numbers[job.name], plan, job.workdir):
            given_up.add(job.name)
        return job.name in given_up

    local.run_jobs(jobs(), slots, stop, ended=end, watch=watch, directory=plan.directory)


def run_task(plan: Plan, workdir: Path, index: int, start: Callable[..., int]) -> int:
    """Runs one task of a job array, which has one trial, also after it has been requeued; returns the job's exit code.

    `start` is called with the plan, the run's workdir, its command, and a function that says whether to stop it.
    """
    opened = study(plan, workdir, draw=index)
    mine = next((trial for trial in opened.trials if trial.user_attrs.get(_TASK) == index), None)
    if mine is None:
        mine = opened.ask(_distributions(plan.proposals))
        mine.set_user_attr(_TASK, index)
    elif mine.state.is_finished():
        print(f"{_name(mine)} is over.")
        return 0
    run = workdir / _name(mine)
    command = _command(plan, run, mine)
    given_up: list[bool] = []

    def watch() -> bool:
        if should_stop(opened, mine.number, plan, run):
            given_up.append(True)
        return bool(given_up)

    code = start(plan, run, command, watch)
    tell(opened, mine.number, plan, run, pruned=bool(given_up))
    return 0 if given_up else code


def over(workdir: Path, plan: Plan) -> set[int]:
    """Returns the tasks of job arrays whose trials have ended: finished or pruned."""
    ended = [trial for trial in study(plan, workdir).trials if trial.state.is_finished()]
    return {trial.user_attrs[_TASK] for trial in ended if _TASK in trial.user_attrs}


def _command(plan: Plan, workdir: Path, trial: Any) -> list[str]:
    overrides = {name: str(trial.params[name]) for name in plan.proposals["space"]}
    plans.make_run(workdir, overrides)
    return plan.command(workdir, overrides)


def should_stop(opened: Any, number: int, plan: Plan, workdir: Path) -> bool:
    """Reports the evaluations of a running trial to Optuna, and returns whether its pruner stops the trial."""
    if plan.proposals["pruner"] == "NopPruner":
        return False
    import optuna

    # Not one of `opened.trials`, to which nothing can be reported.
    storage = _storage(workdir.parent)
    of_study = storage.get_study_id_from_name(opened.study_name)
    trial = optuna.trial.Trial(opened, storage.get_trial_id_from_study_id_trial_number(of_study, number))
    known = opened.trials[number].intermediate_values
    for epoch, value in ends.evaluations(workdir, plan.metric):
        if round(epoch) not in known:
            trial.report(value, round(epoch))
    return trial.should_prune()


def tell(opened: Any, number: int, plan: Plan, workdir: Path, *, pruned: bool) -> None:
    """Passes the result of a finished or pruned run to Optuna; the same command continues any other run."""
    from optuna.trial import TrialState

    end = ends.read(plan, workdir.parent, workdir.name)
    if pruned:
        opened.tell(number, state=TrialState.PRUNED)
    elif end.state == "finished" and end.value is not None:
        opened.tell(number, end.value)
    elif end.state == "finished":  # Without a finite value.
        opened.tell(number, state=TrialState.FAIL)


def read_pruned(workdir: Path, plan: Plan) -> dict[str, int]:
    """Returns the runs that Optuna's pruner has stopped, and after which epoch."""
    trials = [trial for trial in study(plan, workdir).trials if trial.state.name == "PRUNED"]
    return {_name(trial): max(trial.intermediate_values, default=0) for trial in trials}
