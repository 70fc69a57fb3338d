"""Measures all-reduces and predicts the step time of more workers: `srun python -m tfdist all_reduce --config=...`.

Start it like tfdist.main, under any launcher. It measures the all-reduce of tensors of several sizes over all replicas,
and fits the latency and bandwidth of a ring all-reduce, which sends 2(N-1)/N times the bytes in 2(N-1) messages. Then
it measures steps of the config with and without communication, and predicts the step time for more workers. Tables
and a picture are written into the workdir. With --ring it also runs a ring all-reduce by hand, and draws each message.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import flags

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.cluster.devices import host_gpus
from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery import gpus as gpus_lib
from tfdist.config import flags as config_flags
from tfdist.tools import measure, tables
from tfdist.tools.pictures import measured, style

HEADER = ("bytes", "ring_bytes", "measured_ms", "ring_ms", "gbit_per_second")
STEP_HEADER = ("replicas", "predicted_ms", "measured_ms", "efficiency")
_ALONE = (
    "There is one replica, so there is no all-reduce to measure. Start several workers, with srun, mpirun or python -m "
    "tfdist.launch --workers=2 -- -m tfdist all_reduce --config=..., or set --config.cluster.logical_devices=2 to try "
    "it in one process (docs/before-the-job.md)."
)


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_string("workdir", None, "Directory of the table and the picture. Default: runs/NAME-all_reduce.")
    flags.DEFINE_integer("steps", 10, "Number of steps of the config to measure.", lower_bound=1)
    flags.DEFINE_float("largest_mb", 64.0, "Size of the largest tensor, in MiB.", lower_bound=0.001)
    flags.DEFINE_bool("ring", False, "Also draw a ring all-reduce of this config's gradients, message by message.")


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
        latency = 0.0
        per_byte = np.median(np.asarray(seconds) / parts[:, 1])
    per_byte = max(per_byte, 1e-15)
    return RingCostModel(latency=float(latency), bandwidth=float(1.0 / per_byte))


def predictions(
    ring: RingCostModel, step_without_comm: float, num_bytes: int, replicas: int, measured: float
) -> list[tuple]:
    """Rows of `STEP_HEADER` for 1, 2, 4, 8 and 16 times the replicas; `measured`: seconds of a whole step on them."""
    rows = []
    for factor in (1, 2, 4, 8, 16):
        number = factor * replicas
        predicted = step_without_comm + ring.seconds(num_bytes, number)
        observed = round(1e3 * measured, 3) if factor == 1 else None
        rows.append((number, round(1e3 * predicted, 3), observed, round(step_without_comm / predicted, 3)))
    return rows


def check_replicas(options: config_lib.ClusterOptions, env: Mapping[str, str]) -> None:
    """Raises a ValueError if there is one replica; without TensorFlow, which takes seconds to import."""
    spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    if spec.num_workers > 1 or options.logical_devices > 1:
        return
    gpus = () if options.gpus == 0 else gpus_lib.select_gpus(range(len(host_gpus.assigned_gpus(env))), options.gpus)
    if len(gpus) < 2:
        raise ValueError(_ALONE)


def measure_all() -> int:
    """Measures on all workers, prints and writes the tables on the chief; returns the exit code."""
    from tfdist.training import setup

    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-all_reduce").expanduser()
    config = flags.FLAGS["config"].value
    started = setup.build_run(config, workdir)
    cluster = started.cluster
    if cluster.num_replicas == 1:  # TensorFlow lists fewer GPUs than the driver.
        raise ValueError(_ALONE)
    if cluster.is_chief:
        tables.make_folder(workdir)
    replicas = cluster.num_replicas
    largest = max(4, int(flags.FLAGS.largest_mb * 2**20))
    sizes = [*itertools.takewhile(lambda size: size < largest, (4 * 16**power for power in itertools.count())), largest]
    seconds = [measure.all_reduce_seconds(cluster, size) for size in sizes]
    ring = fit(sizes, seconds, replicas)
    if flags.FLAGS.ring:  # Before the weights change.
        from tfdist.configs.laboratory import ring as ring_by_hand

        record = ring_by_hand.measure(started)
        by_tensorflow = measure.all_reduce_seconds(cluster, sum(record.chunk_bytes))
    wire_bytes = 2 if config.communication.dtype != "float32" else 4
    num_bytes = wire_bytes * sum(int(np.prod(v.shape)) for v in started.context.model.trainable_variables)
    without_comm = measure.step_seconds(started, flags.FLAGS.steps, communication=False)
    whole = measure.step_seconds(started, flags.FLAGS.steps)
    if cluster.is_chief:
        rows = []
        for size, took in zip(sizes, seconds, strict=True):
            sent = 2 * (replicas - 1) / replicas * size
            times = (round(1e3 * took, 4), round(1e3 * ring.seconds(size, replicas), 4))
            rows.append((size, int(sent), *times, round(8e-9 * sent / took, 4)))
        print("\n".join(cluster.roster.short_lines(verbose=False)))
        print(tables.text(HEADER, rows))
        print(f"fitted ring: {1e3 * ring.latency:.3f} ms per message, {8e-9 * ring.bandwidth:.3f} Gbit/s")
        print(f"step without communication: {1e3 * without_comm:.3f} ms; gradients: {num_bytes:,} bytes")
        steps = predictions(ring, without_comm, num_bytes, replicas, whole)
        print(tables.text(STEP_HEADER, steps))
        tables.write_csv(workdir / "all_reduce.csv", HEADER, rows)
        caption = (
            f"{config_flags.config_name()}, {replicas} replicas by {cluster.implementation.upper()}, "
            f"{measure.machine()}; fitted ring: {1e3 * ring.latency:.3g} ms per message, "
            f"{8e-9 * ring.bandwidth:.3g} Gbit/s per replica"
        )
        formula = functools.partial(ring.seconds, replicas=replicas)
        draw = functools.partial(measured.draw_all_reduce, rows, steps, formula, caption=caption)
        print(style.save(workdir / "all_reduce", draw))
        if flags.FLAGS.ring:
            ring_by_hand.show(record, by_tensorflow, workdir)
    cluster.leave()
    return 0


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    check_replicas(flags.FLAGS["config"].value.cluster, os.environ)
    process_exit.run_and_exit(measure_all, saves=False)
