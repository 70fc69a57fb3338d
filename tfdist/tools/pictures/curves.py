"""Curves of one or several runs from their metrics.jsonl: the objective's values and examples per second.

They are drawn by epoch, or by another column of the reports, such as the step or the learning rate.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.report import reporter
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import style

SPEED = "examples_per_second"
# Points are marked if there are at most this many.
_MARKED = 40
# Fields in the caption of a run.
_MAX_FIELDS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The reports of a run, in order; see `reporter` for their names."""

    label: str
    train: list[dict[str, Any]]
    evaluation: list[dict[str, Any]]
    # The fields of the config in which the runs differ; for a single run, its network and batch size.
    caption: str

    def names(self) -> list[str]:
        """Returns the names of the objective's values in the order of the reports, then `SPEED`."""
        found = [name for line in (self.train[:1] + self.evaluation[:1]) for name in line]
        return [*dict.fromkeys(name for name in found if name not in reporter.RESERVED), SPEED]


def read(workdirs: Sequence[Path]) -> list[Run]:
    """Reads the runs in these directories; raises ValueError if one has no reports yet."""
    configs = [run_state.read_config(workdir) for workdir in workdirs]
    runs = []
    for workdir, label, config, different in zip(
        workdirs, run_state.labels(workdirs), configs, run_state.differing(configs), strict=True
    ):
        train, evaluation = (child_runs.reports(workdir, kind) for kind in ("train", "evaluation"))
        if not train:
            raise ValueError(f"{workdir} has no reports: give the workdir of a run, such as runs/digits.")
        target = config.get("model.name") or str(config.get("model.target", "")).rpartition(":")[2]
        words = [f"{name} {tables.format_value(value)}" for name, value in different.items()]
        words = words if len(words) <= _MAX_FIELDS else [*words[:_MAX_FIELDS], "..."]
        described = f"{label}: {', '.join(words)}" if words else f"{target}, batch {config.get('data.batch_size')}"
        runs.append(Run(label=label, train=train, evaluation=evaluation, caption=described))
    return runs


def draw(runs: Sequence[Run], names: Sequence[str] = (), *, log: bool = False, x: str = "epoch") -> Any:
    """Returns a figure with a panel for each value: training as lines, evaluations as dashed lines, a colour per run.

    Args:
        names: the values; none: all.
        log: the scale of the loss is logarithmic.
        x: the column of the reports on the horizontal axis. Evaluations have the epoch and the step only.

    Raises ValueError if no run has a value of one of `names`, or the column `x`.
    """
    known = [*dict.fromkeys(name for run in runs for name in run.names() if name != SPEED), SPEED]
    for name in names:
        if name not in known:
            raise ValueError(f"--y: the runs have no value {name!r}; they have {', '.join(known)}.")
    if not any(x in record for run in runs for record in run.train):
        raise ValueError(f"--x: the runs have no column {x!r}; they have {', '.join(runs[0].train[-1])}.")
    chosen = list(names) or known
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    title = f"Run {runs[0].label}" if len(runs) == 1 else "Runs"
    size = (max(9.0, 4.4 * columns), 4.2 * rows)
    caption = "\n".join(dict.fromkeys(run.caption for run in runs))
    figure, panels = style.figure(title, caption, columns=columns, rows=rows, size=size, share="x")
    for axes, name in zip(panels, chosen, strict=False):
        for index, run in enumerate(runs):
            _draw_run(axes, run, name, index, x, min(3, len(runs) - 1 - index))
        axes.set(title=name.replace("_", " "), xlabel=x.replace("_", " "))
        axes.tick_params(labelbottom=True)  # In each row, though the panels share the axis.
        axes.set(xscale="log") if x == "learning_rate" else axes.set_xlim(0, None)
        if log and name == "loss":
            axes.set_yscale("log")
        elif name == SPEED:
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    for axes in panels[len(chosen) :]:
        axes.remove()
    if len(runs) > 1 or runs[0].evaluation:
        style.legend(figure, _legend(runs))
    return figure


def _draw_run(axes: Any, run: Run, name: str, index: int, x: str, above: int) -> None:
    """Draws the curves of a run; wider, if others are drawn `above` it: equal curves can all be seen."""
    look = style.series(index)
    for records, line in ((run.train, "-"), (run.evaluation if name != SPEED else [], "--")):
        points = [(one[x], one[name]) for one in records if one.get(x) is not None and one.get(name) is not None]
        evaluated = line == "--"
        axes.plot(
            [place for place, _ in points],
            [value for _, value in points],
            linestyle=line,
            linewidth=(1.8 if evaluated else 2.2) + 2.0 * above,
            color=look["color"],
            marker=look["marker"] if len(points) <= _MARKED else None,
            markerfacecolor="white" if evaluated else None,
            markersize=7 + 3 * above,
        )


def _legend(runs: Sequence[Run]) -> list[Any]:
    from matplotlib.lines import Line2D

    several = runs if len(runs) > 1 else ()
    handles = [Line2D([], [], **style.series(index), label=run.label) for index, run in enumerate(several)]
    if any(run.evaluation for run in runs):
        color = style.COLORS[0] if len(runs) == 1 else style.GREY
        handles.append(Line2D([], [], color=color, label="training"))
        look = {"color": color, "linestyle": "--", "marker": "o", "markerfacecolor": "white"}
        handles.append(Line2D([], [], **look, label="evaluation"))
    return handles
