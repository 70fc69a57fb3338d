"""Curves of one or several runs from their metrics.jsonl: the objective's values and examples per second by epoch.

Or the objective's values by learning rate, of runs with `tfdist.zoo.schedules:range_test`.
"""

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.report import metrics_file, read_back, reporter
from tfdist.tools import scaling_results
from tfdist.tools.many_runs import differences, run_state
from tfdist.tools.pictures import style

SPEED = "examples_per_second"
# What may be on the horizontal axis.
EPOCH, RATE = "epoch", "learning_rate"
# Evaluations have markers up to this number of reports, training up to the second one.
_MARKED, _FEW = 40, 10
# Over learning rates, a value is the mean over this many reports before and after it.
_WINDOW = 5
# Fields in the caption of a run.
_MAX_FIELDS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The reports of a run, in order; see `reporter` for their names."""

    label: str
    train: list[dict[str, Any]]
    evaluation: list[dict[str, Any]]
    # Model, batch and replicas.
    described: str = ""
    # The fields of the config in which the runs differ, such as {"train.epochs": 12.0}; also "replicas".
    differing: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Of published results: whose, and on which hardware.
    source: str = ""

    def names(self) -> list[str]:
        """Returns the names of the objective's values in the order of the reports, then `SPEED`."""
        found = [name for line in (self.train[:1] + self.evaluation[:1]) for name in line]
        return [*dict.fromkeys(name for name in found if name not in reporter.RESERVED), SPEED]


def read(workdirs: Sequence[Path]) -> list[Run]:
    """Reads the runs in these directories; raises ValueError if one has no metrics.jsonl, or no reports yet."""
    runs = []
    for workdir, label in zip(workdirs, labels(workdirs), strict=True):
        path = workdir / metrics_file.METRICS
        if not path.is_file():
            raise ValueError(f"There is no {path}: give the workdir of a run, such as runs/digits.")
        records = read_back.read_records(path)
        by_kind = {kind: [line for line in records if line.get("kind") == kind] for kind in ("train", "evaluation")}
        if not by_kind["train"]:
            raise ValueError(f"{path} has no report of the training yet.")
        config = differences.read_config(workdir)
        made = Run(label=label, train=by_kind["train"], evaluation=by_kind["evaluation"])
        runs.append((made, config | {"replicas": run_state.replicas(by_kind["train"][-1])}))
    different = differences.fields([config for _, config in runs])
    pairs = zip(runs, different, strict=True)
    return [dataclasses.replace(run, described=_describe(config), differing=fields) for (run, config), fields in pairs]


def read_published(name: str) -> list[Run]:
    """Returns results that a course prints by epoch, a run for each number of replicas; [] if it prints none."""
    found = scaling_results.find_published(name)
    runs, source = [], f"page: {found['source']}; {found['hardware']}"
    for index, replicas in enumerate(found["replicas"] if "by_epoch" in found else ()):
        values = {key: by_epoch[index] for key, by_epoch in found["by_epoch"].items()}
        steps = found["steps_per_epoch"][index]
        epochs = range(1, len(next(iter(values.values()))) + 1)
        lines = [{"epoch": n, "step": n * steps} | {key: each[n - 1] for key, each in values.items()} for n in epochs]
        runs.append(Run(label=f"page, {replicas} GPU{'s' * (replicas > 1)}", train=lines, evaluation=[], source=source))
    return runs


def compare(runs: Sequence[Run]) -> tuple[list[str], list[list[Any]]]:
    """Returns a table of several runs, header and rows: the last values, and the fields in which the runs differ."""
    values = [name for run in runs for name in run.names() if name != SPEED]
    names = list(dict.fromkeys(values))
    fields = list(dict.fromkeys(name for run in runs for name in run.differing))
    rows = []
    for run in runs:
        last = [reports[-1] if reports else {} for reports in (run.train, run.evaluation)]
        found = [record.get(name) for name in names for record in last]
        shown = [None if (value := run.differing.get(name)) is None else str(value) for name in fields]
        rows.append([run.label, run.train[-1]["step"], *found, *shown])
    kinds = [f"{kind}{name.replace('_', ' ')}" for name in names for kind in ("", "evaluation ")]
    return ["run", "step", *kinds, *fields], rows


def labels(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of the paths, as many as make all labels different."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-count:]) for each in parts]
        if len(set(found)) == len(found):
            break
    return found


def draw(runs: Sequence[Run], names: Sequence[str] = (), *, log: bool = False, x: str = EPOCH) -> Any:
    """Returns a figure with a panel for each value: training as lines, evaluations as dashed lines, a colour per run.

    By learning rate, there are no evaluations, and lines are smoothed and end where the loss has diverged.

    Raises if no run has a value of one of `names`.
    """
    known = [*dict.fromkeys(name for run in runs for name in run.names() if name != SPEED), SPEED]
    for name in names:
        if name not in known:
            raise ValueError(f"--values: the runs have no value {name!r}; they have {', '.join(known)}.")
    if x == RATE:
        runs = [dataclasses.replace(run, train=_until_diverged(run.train), evaluation=[]) for run in runs]
    chosen = list(names) or known[: -1 if x == RATE else None]
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    title = f"Run {runs[0].label}" if len(runs) == 1 else "Runs"
    size = (max(9.0, 4.4 * columns), 4.2 * rows)
    figure, panels = style.figure(title, _caption(runs), columns=columns, rows=rows, size=size, share="x")
    for axes, name in zip(panels, chosen, strict=False):
        for index, run in enumerate(runs):
            (_draw_by_rate if x == RATE else _draw_run)(axes, run, name, index)
        axes.set(title=name.replace("_", " "), xlabel=x.replace("_", " "))
        axes.set(xscale="log") if x == RATE else axes.set_xlim(0, None)
        if log and name == "loss":
            axes.set_yscale("log")
        elif name == SPEED:
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    for axes in panels[len(chosen) :]:
        axes.remove()
    handles = _legend(runs)
    if handles:
        style.legend(figure, handles)
    return figure


def _caption(runs: Sequence[Run]) -> str:
    """Returns what differs between the runs, a line for each; of one run, or of equal ones, what they are."""
    trained = [run for run in runs if not run.source]
    sources = dict.fromkeys(run.source for run in runs if run.source)
    lines = [f"{run.label}: {', '.join(differences.in_words(run.differing, _MAX_FIELDS))}" for run in trained]
    if not trained[0].differing:
        lines = [trained[0].described + ("; no field of their configs differs" if len(trained) > 1 else "")]
    return "\n".join([*lines, *sources])


def _draw_run(axes: Any, run: Run, name: str, index: int) -> None:
    style_of_run = style.series(index)
    for records, line, alpha in ((run.train, "-", 1.0), (run.evaluation if name != SPEED else [], "--", 0.9)):
        points = [(record["epoch"], record[name]) for record in records if record.get(name) is not None]
        if not points:
            continue
        evaluated = records is run.evaluation
        axes.plot(
            *zip(*points, strict=True),
            linestyle=line,
            alpha=alpha,
            linewidth=1.8 if evaluated else 2.2,
            color=style_of_run["color"],
            marker=style_of_run["marker"] if len(points) <= (_MARKED if evaluated else _FEW) else None,
            markerfacecolor="white" if evaluated else None,
            markersize=7,
        )


def _draw_by_rate(axes: Any, run: Run, name: str, index: int) -> None:
    points = [(record[RATE], record[name]) for record in run.train if RATE in record and record.get(name) is not None]
    rates, values = [rate for rate, _ in points], [value for _, value in points]
    means = []
    for place in range(len(values)):
        wide = min(_WINDOW, place, len(values) - 1 - place)
        means.append(statistics.mean(values[place - wide : place + wide + 1]))
    color = style.series(index)["color"]
    axes.plot(rates, values, color=color, linewidth=1.0, alpha=0.3)
    axes.plot(rates, means, color=color, linewidth=2.2)


def _until_diverged(train: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the reports of a rising rate before the loss is far above all of the first half."""
    half = len(train) // 2
    losses = [math.inf if record.get("loss") is None else record["loss"] for record in train]
    early = [loss for loss in losses[:half] if loss < math.inf]
    limit = 2 * max(early) - min(early) if early else math.inf
    return train[: half + sum(1 for _ in itertools.takewhile(lambda loss: loss <= limit, losses[half:]))]


def _legend(runs: Sequence[Run]) -> list[Any]:
    from matplotlib.lines import Line2D

    several = runs if len(runs) > 1 else ()
    handles = [Line2D([], [], **style.series(index), label=run.label) for index, run in enumerate(several)]
    if any(run.evaluation for run in runs):
        color = style.COLORS[0] if len(runs) == 1 else style.GREY
        handles.append(Line2D([], [], color=color, linestyle="-", label="training"))
        handles.append(
            Line2D([], [], color=color, linestyle="--", marker="o", markerfacecolor="white", label="evaluation")
        )
    return handles


def _describe(config: dict[str, Any]) -> str:
    name = config.get("model.name") or str(config.get("model.target", "")).rpartition(":")[2]
    batch, replicas = config.get("data.batch_size"), config["replicas"]
    words = [name, f"batch {batch:,}" if batch else ""]
    words.append(f"{replicas} replica{'s' if replicas > 1 else ''}" if replicas else "")
    return ", ".join(word for word in words if word)
