"""What the files of runs say: which directories hold runs, and a row of values for each. Imports no TensorFlow."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory, workdir_lock
from tfdist.config import diff, text
from tfdist.report import files, metrics_file, read_back, reporter, run_info

# A directory with one of these files is the workdir of a run.
MARKS = (run_info.CONFIG, metrics_file.METRICS)
# Levels of directories below the given one: runs/SWEEP/RUN/fit1.
_MAX_LEVELS = 5


def workdirs(path: Path, problems: list[str], levels: int = _MAX_LEVELS) -> Iterator[Path]:
    """Yields the workdirs of runs at `path` and below it, sorted; for a script, that of each call of `fit`.

    Hidden directories and links are left out; `problems` gets a line for each directory that cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            found = {entry.name: entry for entry in entries}
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror}).")
        return
    if not found.keys().isdisjoint(MARKS):
        yield path
        return
    for name in sorted(found, key=_by_number):
        if levels and not name.startswith(".") and found[name].is_dir(follow_symlinks=False):
            yield from workdirs(path / name, problems, levels - 1)


def _by_number(name: str) -> list[tuple[float, str]]:
    """Sorts fit2 before fit10, and peak=0.03 before peak=0.1."""
    return [(float(part), "") if part[:1].isdecimal() else (-1.0, part) for part in re.split(r"(\d+(?:\.\d+)?)", name)]


def read_all(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads the runs at and below `paths`, each once; also returns a line for each one that cannot be read."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for workdir in dict.fromkeys(each for path in paths for each in workdirs(path, problems)):
        try:
            rows.append(read(workdir))
        except (ValueError, OSError) as error:
            problems.append(f"{workdir} is skipped: {error}")
        except Exception as error:  # A damaged file may hold anything.
            problems.append(f"{workdir} is skipped: it is not a run of tfdist ({type(error).__name__}: {error}).")
    return rows, problems


def read(workdir: Path) -> dict[str, Any]:
    """Returns what is known about a run from its files: name -> value. Unknown values are None or missing.

    The names: the fields of the config, such as learning_rate.peak; the values of the best evaluation, of the last one
    and of the last report of training, such as best.accuracy, last.loss and training.loss; and

        run: the workdir, relative to the working directory if it is below it.
        state: running; stopped: saved after a request; finished; diverged: a loss or weight became non-finite; failed:
            by another error; lost: its process ended without recording why, or another worker was lost.
        step, epoch: the last step that is reported or saved, and the epochs until then.
        epochs: the end that the config sets.
        examples_per_second: of the last report of training.
        hours: for how long the run's processes ran, over all starts.
        replicas: those of the last start.
        job: the Slurm job of the last start.
        trouble: the last error or warning.

    Raises ValueError, which names the file, if one cannot be read.
    """
    config = read_config(workdir)
    records = read_back.read_records(workdir / metrics_file.METRICS)
    by_kind = {name: [one for one in records if one.get("kind") == name] for name in ("train", "evaluation", "warning")}
    train, last, warning = (each[-1] if each else {} for each in by_kind.values())
    starts = read_back.read_starts(workdir)
    start = starts[-1] if starts else {}
    owner = workdir_lock.owner(workdir)
    alive = owner is not None and workdir_lock.is_alive(workdir, owner)
    finished = files.read_json(workdir / "finished.json")
    state = "running" if alive else start.get("end") or ("lost" if starts or finished is None else "finished")
    saved = [directory.newest_step(workdir / "checkpoints"), finished and finished.get("step")]
    steps = [train.get("step"), last.get("step"), *saved, start.get("step") if alive else None]
    step = max((one for one in steps if one is not None), default=None)
    per_epoch = start.get("steps_per_epoch")
    values = {
        "best": _best(config, by_kind["evaluation"]),
        "last": last,
        "training": train,
    }
    return config | {
        **{f"{kind}.{name}": one for kind, record in values.items() for name, one in _values(record).items()},
        "run": short(workdir),
        "state": state,
        "step": step,
        "epoch": step / per_epoch if step and per_epoch else train.get("epoch"),
        "epochs": start["total_steps"] / per_epoch if per_epoch and "total_steps" in start else None,
        "examples_per_second": train.get("examples_per_second"),
        "hours": sum(each["seconds"] for each in starts) / 3600 if starts else None,
        "replicas": start.get("replicas"),
        "job": start.get("job") or (owner.job if owner is not None else ""),
        "trouble": f"{start.get('text') or warning.get('text', '')}",
    }


def read_config(workdir: Path) -> dict[str, Any]:
    """Returns the config of a run by dotted names; {} if it has none; raises ValueError if config.json is damaged."""
    return dict(diff.flatten(run_info.read_config(workdir) or {}))


def _best(config: Mapping[str, Any], evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    metric, mode = config.get("checkpoint.best_metric") or "loss", config.get("checkpoint.best_mode")
    sign = -1 if metric != "loss" and mode == "max" else 1
    known = [record for record in evaluations if isinstance(record.get(metric), int | float)]
    return min(known, key=lambda record: sign * record[metric], default={})


def _values(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the objective's values in a record, and its step and epoch."""
    names = [name for name in record if name not in reporter.RESERVED or name in ("step", "epoch")]
    return {name: record[name] for name in names if record[name] is None or isinstance(record[name], int | float)}


def short(path: Path) -> str:
    """Returns a path for a reader: relative to the working directory, if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def labels(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of the paths, as many as make all labels different."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-count:]) for each in parts]
        if len(set(found)) == len(found):
            break
    return found


def differing(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each config, the fields in which they differ: dotted name -> value; None if it lacks the field.

    Fields of config.cluster, which describe connections, are left out.
    """
    names = dict.fromkeys(name for one in configs for name in one if not name.startswith("cluster."))
    different = [name for name in names if any(one.get(name) != configs[0].get(name) for one in configs)]
    return [{name: one.get(name) for name in different} for one in configs]


def resolve(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what `name` means in rows of `read`: itself, the end of one name, or the best value of a metric.

    Raises ValueError if no row has this name, or several names end with it.
    """
    known = list(dict.fromkeys(each for row in rows for each in row))
    if name in known:
        return name
    endings = [each for each in known if each.endswith(f".{name}")]
    if f"best.{name}" in endings:
        return f"best.{name}"
    if len(endings) == 1:
        return endings[0]
    if endings:
        raise ValueError(f"{name!r} may be {', '.join(endings)}: write one of them.")
    near = text.closest(name, known, 0.6)
    raise ValueError(f"No run has a field {name!r}.{f' Nearest: {near}.' if near else ''}")
