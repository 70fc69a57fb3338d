"""The plan of a sweep, `sweep.json` in its workdir: its runs, what all of them share, and how each is started."""

import dataclasses
import os
import sys
from pathlib import Path

from tfdist.report import files
from tfdist.tools.many_runs.sweeps import space

FILE = "sweep.json"
# In the directory of each run: its overrides.
OVERRIDES = "overrides.json"
# The exit code of its last process, and the last line that it printed.
END = "end.json"
# Attributes of plans of earlier releases, which stopped bad runs early.
_REMOVED = ("prune", "proposals")
_ADVICE = "choose another --workdir, or remove it: the runs stay, and the same command finds those that are finished."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A sweep: what is written when it starts, and read by the tasks of a job array.

    Attributes:
        config: the words that name the config and override its fields, equal for all runs; empty for a script.
        script: the script and its own flags; empty for a config.
        runs: name of the run -> its overrides.
        metric: the name of an evaluation's value, by which runs are compared.
        mode: "max" or "min": which values of the metric are better.
        directory: where the command was started: the runs start there, too.
    """

    config: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    runs: dict[str, space.Overrides] = dataclasses.field(default_factory=dict)
    metric: str = "loss"
    mode: str = "min"
    directory: str = dataclasses.field(default_factory=os.getcwd)

    def overriding(self, overrides: space.Overrides) -> list[str]:
        """Returns the words of a run's overrides: fields of the config, or flags of the script."""
        if self.script:
            return [f"--{name}={value}" for name, value in overrides.items()]
        return [
            f"--epochs={value}" if name == "epochs" else f"--config.{name}={value}" for name, value in overrides.items()
        ]

    def command(self, workdir: Path, overrides: space.Overrides) -> list[str]:
        """Returns the command that starts or resumes a run in `workdir`."""
        if self.script:
            words = [*self.script, *self.overriding(overrides)]
            return [sys.executable, "-m", "tfdist.run", f"--workdir={workdir}", *words]
        # As a user types it: --epochs=5 and other short forms are understood there.
        words = [*self.config, *self.overriding(overrides)]
        return [sys.executable, "-m", "tfdist.main", *words, f"--workdir={workdir}"]


def write(workdir: Path, plan: Plan) -> None:
    """Writes the plan; raises OSError if it cannot be written."""
    files.write_json(str(workdir / FILE), dataclasses.asdict(plan))


def read(workdir: Path) -> Plan | None:
    """Returns the plan of the sweep in `workdir`; None if there is none; raises ValueError if it is damaged."""
    saved = files.read_json(str(workdir / FILE), _ADVICE)
    if saved is None:
        return None
    try:
        known = {name: value for name, value in saved.items() if name not in _REMOVED}
        return Plan(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})
    except TypeError:
        raise ValueError(f"{workdir / FILE} is damaged: {_ADVICE}") from None


def merge(old: Plan | None, new: Plan, workdir: Path) -> Plan:
    """Returns the plan of a command in a workdir that may hold a sweep: new values add runs to it.

    Raises ValueError if that has another config or script.
    """
    if old is None:
        return new
    for name in ("config", "script"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            shown = f"its {name} was {' '.join(before)!r}, and is now {' '.join(now)!r}"
            raise ValueError(f"{workdir} holds another sweep: {shown}. To begin anew, choose another --workdir.")
    return dataclasses.replace(new, runs=_with_new(old.runs, new.runs), directory=old.directory)


def _with_new(old: dict[str, space.Overrides], new: dict[str, space.Overrides]) -> dict[str, space.Overrides]:
    """Returns the runs of both; a run of `new` keeps the name of the same one, and takes that of no other one."""
    names = {frozenset(row.items()): name for name, row in old.items()}
    runs = dict(old)
    for name, row in new.items():
        free = space.with_digest(name, row) if name in old else name
        runs[names.get(frozenset(row.items()), free)] = row
    return runs


def make_run(workdir: Path, overrides: space.Overrides) -> None:
    """Makes the workdir of a run, with its overrides, and removes how it ended before; raises OSError."""
    files.make_workdir(workdir)
    (workdir / END).unlink(missing_ok=True)
    files.write_json(str(workdir / OVERRIDES), overrides)
