"""Curves of one or several runs from their metrics.jsonl: the objective's values and examples per second by epoch."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.report import metrics_file, reporter, run_info
from tfdist.tools.pictures import style

SPEED = "examples_per_second"
# Evaluations have markers up to this number of reports, training up to the second one.
_MARKED, _FEW = 40, 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The reports of a run, in order; see `reporter` for their names."""

    label: str
    train: list[dict[str, Any]]
    evaluation: list[dict[str, Any]]
    # Model, batch and replicas in one line.
    described: str = ""

    def names(self) -> list[str]:
        """Returns the names of the objective's values in the order of the reports, then `SPEED`."""
        found = [name for line in (self.train[:1] + self.evaluation[:1]) for name in line]
        return [*dict.fromkeys(name for name in found if name not in reporter.RESERVED), SPEED]


def read(workdirs: Sequence[Path]) -> list[Run]:
    """Reads the runs in these directories.

    Raises:
        ValueError: a directory has no metrics.jsonl, or it has no reports yet.
    """
    runs = []
    for workdir, label in zip(workdirs, labels(workdirs), strict=True):
        path = workdir / metrics_file.METRICS
        if not path.is_file():
            raise ValueError(f"There is no {path}: give the workdir of a run, such as runs/digits.")
        records = metrics_file.read_records(path)
        by_kind = {kind: [line for line in records if line.get("kind") == kind] for kind in ("train", "evaluation")}
        if not by_kind["train"]:
            raise ValueError(f"{path} has no report of the training yet.")
        described = _described(workdir, by_kind["train"][-1])
        runs.append(Run(label=label, train=by_kind["train"], evaluation=by_kind["evaluation"], described=described))
    return runs


def labels(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of the paths, as many as make all labels different."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-count:]) for each in parts]
        if len(set(found)) == len(found):
            break
    return found


def draw(runs: Sequence[Run], names: Sequence[str] = (), *, log: bool = False) -> Any:
    """Returns a figure with a panel for each value: training as lines, evaluations as dashed lines, a colour per run.

    Args:
        runs: of `read`.
        names: the values to draw; empty: all.
        log: a logarithmic scale for the loss.

    Raises:
        ValueError: no run has a value of this name.
    """
    known = [*dict.fromkeys(name for run in runs for name in run.names() if name != SPEED), SPEED]
    for name in names:
        if name not in known:
            raise ValueError(f"--values: the runs have no value {name!r}; they have {', '.join(known)}.")
    chosen = list(names) or known
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    title = f"Run {runs[0].label}" if len(runs) == 1 else "Runs"
    caption = "\n".join(f"{run.label}: {run.described}" for run in runs if run.described)
    figure, panels = style.figure(
        title, caption, columns=columns, rows=rows, size=(max(9.0, 4.4 * columns), 4.2 * rows), share="x"
    )
    for axes, name in zip(panels, chosen, strict=False):
        for index, run in enumerate(runs):
            _draw_run(axes, run, name, index)
        axes.set(title=name.replace("_", " "), xlabel="epoch", xlim=(0, None))
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


def _legend(runs: Sequence[Run]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **style.series(index), label=run.label) for index, run in enumerate(runs) if len(runs) > 1
    ]
    if any(run.evaluation for run in runs):
        color = style.COLORS[0] if len(runs) == 1 else style.GREY
        handles.append(Line2D([], [], color=color, linestyle="-", label="training"))
        handles.append(
            Line2D([], [], color=color, linestyle="--", marker="o", markerfacecolor="white", label="evaluation")
        )
    return handles


def _described(workdir: Path, last: dict[str, Any]) -> str:
    config = run_info.read_config(workdir) or {}
    model, data = (config[name] if isinstance(config.get(name), dict) else {} for name in ("model", "data"))
    name = model.get("name") or str(model.get("target", "")).rpartition(":")[2]
    per_replica = last.get("examples_per_second_per_replica")
    replicas = round(last[SPEED] / per_replica) if per_replica and last.get(SPEED) else None
    words = [name, f"batch {data['batch_size']:,}" if data.get("batch_size") else ""]
    words.append(f"{replicas} replica{'s' if replicas > 1 else ''}" if replicas else "")
    return ", ".join(word for word in words if word)
