"""The state of a run, read from its workdir: whether it runs, how far it is, its metrics. Imports no TensorFlow."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from tfdist.checkpoint import directory, workdir_lock
from tfdist.report import files, metrics_file, read_back, reporter, run_info
from tfdist.tools.many_runs import differences

State = Literal["running", "queued", "stopped", "finished", "diverged", "failed", "lost"]
# A file that makes a directory one of a run.
MARKS = (run_info.CONFIG, metrics_file.METRICS)
# Bytes that are read from the end of metrics.jsonl, at most, unless the best evaluation is before them.
_MAX_BYTES = 2**24
_START = b'{"kind": "%s"' % metrics_file.START.encode()
_OVERRIDE = re.compile(r"--config\.([\w.]+)=(.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What the files of a workdir say of a run. Numbers are None, and dicts lack a name, where no file has them."""

    workdir: Path
    # "stopped": saved after a stop request. "diverged": a loss or weight became non-finite. "failed": another error.
    # "lost": the process no longer exists and left no word, or another worker was lost. "queued": it is none of these
    # and its Slurm job waits; see `find.with_queue`.
    state: State
    # The last reported or saved step, and the epochs until then.
    step: int | None = None
    epoch: float | None = None
    # The end that the config sets, in epochs.
    epochs: float | None = None
    # The values of the best evaluation, of the last one, and of the last report of training, by name, as in
    # metrics.jsonl. The best one is that of config.checkpoint.best_metric, or else that with the smallest loss.
    best: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    last: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    train: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    examples_per_second: float | None = None
    # Hours in which a process of the run was alive, over all starts.
    hours: float | None = None
    replicas: int | None = None
    # The config by dotted names, "learning_rate.peak"; and the fields that the last command set, as it wrote them.
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The Slurm job of the last start, as squeue names it; "": none.
    job: str = ""
    # The last warning or error; "": none.
    trouble: str = ""


def read(workdir: Path) -> RunState:
    """Reads the state of the run in `workdir`; raises ValueError, which names the file, if one cannot be read."""
    config = differences.read_config(workdir)
    environment = files.read_json(workdir / run_info.ENVIRONMENT) or {}
    finished = files.read_json(workdir / "finished.json")
    metric = config.get("checkpoint.best_metric")
    records = _records(workdir / metrics_file.METRICS, every_evaluation=not isinstance(metric, str))
    train = _of_kind(records, "train")[-1:]
    evaluations = _of_kind(records, "evaluation")
    starts = read_back.read_starts(workdir)
    start = starts[-1] if starts else {}
    newest = max([*train, *evaluations], key=lambda record: record.get("step", 0), default={})
    saved = directory.newest_step(workdir / "checkpoints")
    steps = [value for value in (newest.get("step"), saved, (finished or {}).get("step")) if isinstance(value, int)]
    owner = workdir_lock.owner(workdir)
    alive = owner is not None and workdir_lock.is_alive(workdir, owner)
    step = max([*steps, *([start["step"]] if alive and "step" in start else [])], default=None)
    reported = newest["step"] / newest["epoch"] if newest.get("step") and newest.get("epoch") else None
    per_epoch = start.get("steps_per_epoch") or reported
    warning = next((record for record in reversed(records) if record["kind"] == "warning"), {})
    return RunState(
        workdir=workdir,
        state=_state(owner is not None, alive, start, finished is not None, records),
        step=step,
        epoch=newest.get("epoch") if per_epoch is None or step is None else step / per_epoch,
        epochs=_epochs(config, per_epoch),
        best=_values(_best(config, evaluations)),
        last=_values(evaluations[-1] if evaluations else {}),
        train=_values(train[0] if train else {}),
        examples_per_second=train[0].get("examples_per_second") if train else None,
        hours=sum(each["seconds"] for each in starts) / 3600 if starts else _hours(records),
        replicas=start.get("replicas", replicas(train[0]) if train else None),
        config=config,
        overrides=dict(found.groups() for word in environment.get("command", []) if (found := _OVERRIDE.match(word))),
        job=f"{start.get('job') or (owner.job if owner is not None else '')}",
        trouble=f"{start.get('text') or warning.get('text', '')}",
    )


def _records(path: Path, *, every_evaluation: bool) -> list[dict[str, Any]]:
    """Returns the records that are needed here, in order: most lines are not parsed, which takes most of the time.

    Of the training, only the last report, and of evaluations only the best and the last one, unless all are asked for.
    """
    content = files.read_file(path, last=_MAX_BYTES) or b""
    if len(content) == _MAX_BYTES and (every_evaluation or b'"best": true' not in content.partition(b"\n")[2]):
        content = files.read_file(path) or b""
    lines = content.splitlines(keepends=True)
    wanted: list[bytes] = []
    seen = set()
    for later, line in itertools.pairwise([b"", *reversed(lines)]):
        kind = line[10 : line.find(b'"', 10)]
        best = kind == b"evaluation" and (every_evaluation or b'"best": true' in line)
        rare = kind not in (b"train", b"evaluation")
        # The last record before a start says how long the start before was alive.
        if rare or kind not in seen or (best and b"best" not in seen) or later.startswith(_START):
            wanted.append(line)
            seen |= {kind, *([b"best"] if best and not every_evaluation else [])}
    return [record for line in reversed(wanted) if "kind" in (record := metrics_file.parse_line(line) or {})]


def _of_kind(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def _state(
    locked: bool, alive: bool, start: Mapping[str, Any], finished: bool, records: Sequence[dict[str, Any]]
) -> State:
    if alive:
        return "running"
    if locked:  # The process ended without a word, or could not say how.
        return start.get("end") if start.get("end") in ("lost", "diverged", "failed") else "lost"
    if start.get("end") in get_args(State):
        return start["end"]
    if finished:
        return "finished"
    last = next((record for record in reversed(records) if record["kind"] in ("event", "train", "evaluation")), {})
    return "stopped" if f"{last.get('text')}".startswith("stopped by ") else "failed"


def _epochs(config: Mapping[str, Any], per_epoch: float | None) -> float | None:
    epochs, steps = config.get("train.epochs"), config.get("train.steps")
    if isinstance(epochs, int | float):
        return float(epochs)
    return steps / per_epoch if isinstance(steps, int) and per_epoch else None


def _best(config: Mapping[str, Any], evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    metric, sign = config.get("checkpoint.best_metric"), 1 if config.get("checkpoint.best_mode") == "min" else -1
    if not isinstance(metric, str):
        metric, sign = "loss", 1
    known = [record for record in evaluations if isinstance(record.get(metric), int | float)]
    return min(known, key=lambda record: sign * record[metric], default={})


def _values(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the objective's values in a record, and its step and epoch."""
    names = [name for name in record if name not in reporter.RESERVED or name in ("step", "epoch")]
    return {name: record[name] for name in names if record[name] is None or isinstance(record[name], int | float)}


def _hours(records: Sequence[dict[str, Any]]) -> float | None:
    """Returns the hours from each start to the last record before the next one."""
    seconds, first, last = 0.0, None, None
    for record in records:
        if record["kind"] == metrics_file.START or first is None:
            seconds += last - first if first is not None else 0.0
            first = record.get("time")
        last = record.get("time", last)
    return None if first is None else (seconds + last - first) / 3600


def replicas(report: Mapping[str, Any]) -> int | None:
    """Returns the replicas of a report of training, by its rates; None if it has none."""
    all_of_them, one = report.get("examples_per_second"), report.get("examples_per_second_per_replica")
    return round(all_of_them / one) if all_of_them and one else None
