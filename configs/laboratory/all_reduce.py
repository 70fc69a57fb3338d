"""Measures what an all-reduce costs: `srun python -m tfdist all_reduce --config=...`.

Start it like tfdist.main, under any launcher. It measures the all-reduce of tensors of several sizes over all replicas,
and fits the latency and bandwidth of a ring all-reduce, which sends 2(N-1)/N times the bytes in 2(N-1) messages. Then
it measures steps of the config with and without communication. Table and picture are written into the workdir. With
--ring it also runs a ring all-reduce by hand, and draws each message.
"""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.configs.laboratory import ring as ring_by_hand
from tfdist.tools import measure, tables
from tfdist.tools.pictures import style

HEADER = ("bytes", "ring_bytes", "measured_ms", "ring_ms", "gbit_per_second")
# Points of the curve in the picture.
_FINE = 200


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    parser.add_workdir("runs/NAME-all_reduce")
    meaning = "Number of steps of the config to measure. Default: 10."
    parser.add_argument("--steps", metavar="N", type=tool_flags.at_least(1), default=10, help=meaning)
    size, meaning = tool_flags.at_least(0.001, float), "Size of the largest tensor, in MiB. Default: 64."
    parser.add_argument("--largest_mb", metavar="MB", type=size, default=64.0, help=meaning)
    meaning = "Also draw a ring all-reduce of this config's gradients, message by message."
    parser.add_argument("--ring", action="store_true", help=meaning)


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(measure_all, args), saves=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RingCostModel:
    """A ring all-reduce: latency of a message in seconds, bandwidth of a replica in bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, num_bytes: float, replicas: int) -> float:
        """Seconds of the all-reduce of a tensor of `num_bytes` over `replicas` replicas."""
        messages = 2 * (replicas - 1)
        return messages * (self.latency + num_bytes / replicas / self.bandwidth)


def fit(sizes: Sequence[float], seconds: Sequence[float], replicas: int) -> RingCostModel:
    """Fits a ring to the `seconds` of all-reduces of `sizes` bytes over at least 2 replicas.

    By least squares of the relative error; the latency is never negative.
    """
    messages = 2 * (replicas - 1)
    parts = np.array([[messages, messages * size / replicas] for size in sizes])
    weights = 1.0 / np.asarray(seconds)
    latency, per_byte = np.linalg.lstsq(parts * weights[:, np.newaxis], np.ones(len(sizes)), rcond=None)[0]
    if latency < 0:
        latency, per_byte = 0.0, np.median(np.asarray(seconds) / parts[:, 1])
    return RingCostModel(latency=float(latency), bandwidth=float(1.0 / max(per_byte, 1e-15)))


def measure_all(args: argparse.Namespace) -> int:
    """Measures on all workers, prints and writes the table on the chief; returns the exit code."""
    from tfdist.training import setup

    config, workdir = args.config, args.workdir
    started = setup.build_run(config, workdir)
    cluster, replicas = started.cluster, started.cluster.num_replicas
    if replicas == 1:
        raise ValueError(
            "There is one replica, so there is no all-reduce to measure. Start several workers, with srun, mpirun or "
            "python -m tfdist.launch --workers=2 -- -m tfdist all_reduce --config=..., or set "
            "--config.cluster.logical_devices=2 to try it in one process (docs/before-the-job.md)."
        )
    if cluster.is_chief:
        tables.make_folder(workdir)
    largest = max(4, int(args.largest_mb * 2**20))
    sizes = [*itertools.takewhile(lambda size: size < largest, (4 * 16**power for power in itertools.count())), largest]
    seconds = [measure.all_reduce_seconds(cluster, size) for size in sizes]
    ring = fit(sizes, seconds, replicas)
    if args.ring:  # Before the measured steps, which change the weights.
        record = ring_by_hand.measure(started)
        by_tensorflow = measure.all_reduce_seconds(cluster, sum(record.chunk_bytes))
    wire_bytes = 2 if config.communication.dtype != "float32" else 4
    num_bytes = wire_bytes * sum(int(np.prod(v.shape)) for v in started.context.model.trainable_variables)
    without_comm = measure.step_seconds(started, args.steps, communication=False)
    whole = measure.step_seconds(started, args.steps)
    if cluster.is_chief:
        rows = []
        for size, took in zip(sizes, seconds, strict=True):
            sent = 2 * (replicas - 1) / replicas * size
            times = (round(1e3 * took, 4), round(1e3 * ring.seconds(size, replicas), 4))
            rows.append((size, int(sent), *times, round(8e-9 * sent / took, 4)))
        fitted = f"fitted ring: {1e3 * ring.latency:.3g} ms per message, {8e-9 * ring.bandwidth:.3g} Gbit/s"
        print("\n".join(cluster.roster.short_lines(verbose=False)))
        print(tables.text(HEADER, rows))
        print(
            f"{fitted}; gradients: {num_bytes:,} bytes, {1e3 * ring.seconds(num_bytes, replicas):.3g} ms; a step: "
            f"{1e3 * without_comm:.3g} ms without communication, {1e3 * whole:.3g} ms with it"
        )
        tables.write_csv(workdir / "all_reduce.csv", HEADER, rows)
        how = cluster.implementation.upper()
        caption = f"{args.config_name}, {replicas} replicas by {how}, {measure.machine()}; {fitted}"
        formula = functools.partial(ring.seconds, replicas=replicas)
        print(style.save(workdir / "all_reduce", lambda: draw(rows, formula, caption=caption)))
        if args.ring:
            ring_by_hand.show(record, by_tensorflow, args.config_name, workdir)
    cluster.leave()
    return 0


def draw(rows: Sequence[tuple], ring: Callable[[float], float], *, caption: str) -> Any:
    """Returns a figure of the all-reduce time by size, measured and by the formula of the ring, bytes -> seconds.

    The rows are of `HEADER`.
    """
    from matplotlib import ticker

    figure, (axes,) = style.figure("Cost of an all-reduce", caption, size=(9.0, 5.4))
    sizes, measured = [row[0] for row in rows], [row[2] for row in rows]
    fine = np.geomspace(sizes[0], sizes[-1], _FINE)
    axes.plot(fine, [1e3 * ring(size) for size in fine], color=style.GREY, linestyle="--", label="formula of the ring")
    axes.plot(sizes, measured, linestyle="none", **style.series(0), label="measured")
    for size, each in zip(sizes, measured, strict=True):
        style.value(axes, size, each, f"{each:.3g}", color=style.COLORS[0])
    axes.set(xscale="log", yscale="log", xlabel="bytes of the tensor", ylabel="milliseconds")
    # Labels of neighbours would cover each other: the largest size may be close to the one before.
    marked = [size for size in sizes[:-1] if 8 * size <= sizes[-1]] + sizes[-1:]
    axes.set_xticks(marked, [_bytes(size) for size in marked])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.margins(y=0.15)
    axes.legend(loc="upper left")
    return figure


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    return ""
