"""What an all-reduce costs, and what that makes of a step: `srun python -m tfdist all_reduce --config=...`.

Started as tfdist.main is, under any launcher. It measures the sum of tensors of several sizes over all replicas, and
compares it with a ring, which sends 2(N-1)/N times the bytes in 2(N-1) messages: two numbers, a latency and a
bandwidth, are fitted to that. Then it measures steps of the config with and without communication, and predicts the
step on more workers, next to the step that was measured on these.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.tools import measure, tables

HEADER = ("bytes", "ring_bytes", "measured_ms", "ring_ms", "gbit_per_second")
STEP_HEADER = ("replicas", "predicted_ms", "measured_ms", "efficiency")


def define_flags() -> None:
    """Defines the flags; not at import, for each command has flags of the same names."""
    config_flags.define_config()
    flags.DEFINE_string("workdir", None, "Where all_reduce.csv goes. Default: runs/NAME-all_reduce.")
    flags.DEFINE_integer("steps", 10, "Steps of the config that are measured.", lower_bound=1)
    flags.DEFINE_float("largest_mb", 64.0, "The largest tensor, in MiB.", lower_bound=0.001)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RingCostModel:
    """A ring of replicas: seconds for a message, and bytes that a replica sends in a second."""

    latency: float
    bandwidth: float

    def seconds(self, num_bytes: float, replicas: int) -> float:
        """What the sum of a tensor of so many bytes takes."""
        messages = 2 * (replicas - 1)
        return messages * (self.latency + num_bytes / replicas / self.bandwidth)


def fit(sizes: Sequence[float], seconds: Sequence[float], replicas: int) -> RingCostModel:
    """Finds the ring whose times are nearest to the measured ones, in proportion; latency is never negative."""
    messages = 2 * (replicas - 1)
    parts = np.array([[messages, messages * size / replicas] for size in sizes])
    weights = 1.0 / np.asarray(seconds)
    latency, per_byte = np.linalg.lstsq(parts * weights[:, np.newaxis], np.ones(len(sizes)), rcond=None)[0]
    if latency < 0:
        latency = 0.0
        per_byte = np.median(np.asarray(seconds) / parts[:, 1])
    per_byte = max(per_byte, 1e-15)
    return RingCostModel(latency=float(latency), bandwidth=float(1.0 / per_byte))


def predictions(ring: RingCostModel, bare: float, num_bytes: int, replicas: int, measured: float) -> list[tuple]:
    """Rows of the second table: these replicas, and two, four, eight and sixteen times as many."""
    rows = []
    for factor in (1, 2, 4, 8, 16):
        number = factor * replicas
        predicted = bare + ring.seconds(num_bytes, number)
        known = round(1e3 * measured, 3) if factor == 1 else None
        rows.append((number, round(1e3 * predicted, 3), known, round(bare / predicted, 3)))
    return rows


def run() -> int:
    """Measures, and on the chief prints and writes; returns the exit code."""
    from tfdist.cluster import cluster as cluster_lib
    from tfdist.training import setup

    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-all_reduce").expanduser()
    config = flags.FLAGS["config"].value
    started = setup.build_run(config, workdir)
    cluster = started.cluster
    if cluster.num_replicas == 1:
        raise ValueError("One replica has nothing to sum: start several, as tfdist.main is started (docs/studies.md).")
    replicas = cluster.num_replicas
    largest = max(4, int(flags.FLAGS.largest_mb * 2**20))
    sizes = [*itertools.takewhile(lambda size: size < largest, (4 * 16**power for power in itertools.count())), largest]
    seconds = [measure.measure(cluster, size) for size in sizes]
    ring = fit(sizes, seconds, replicas)
    wire_bytes = 2 if config.communication.dtype != "float32" else 4
    num_bytes = wire_bytes * sum(int(np.prod(v.shape)) for v in started.trainer.model.trainable_variables)
    bare = measure.step_seconds(started, flags.FLAGS.steps, communication=False)
    whole = measure.step_seconds(started, flags.FLAGS.steps)
    if cluster.is_chief:
        rows = []
        for size, took in zip(sizes, seconds, strict=True):
            sent = 2 * (replicas - 1) / replicas * size
            times = (round(1e3 * took, 4), round(1e3 * ring.seconds(size, replicas), 4))
            rows.append((size, int(sent), *times, round(8e-9 * sent / took, 4)))
        print("\n".join(cluster.roster))
        print(tables.text(HEADER, rows))
        print(f"as a ring: {1e3 * ring.latency:.3f} ms a message, {8e-9 * ring.bandwidth:.3f} Gbit/s")
        print(f"a step without communication: {1e3 * bare:.3f} ms; its gradients: {num_bytes:,} bytes")
        print(tables.text(STEP_HEADER, predictions(ring, bare, num_bytes, replicas, whole)))
        tables.write_csv(workdir / "all_reduce.csv", HEADER, rows)
    cluster_lib.leave(cluster)
    return 0


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(run)
