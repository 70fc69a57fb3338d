"""The GPUs of a job in one table: `python -m tfdist doctor --gpu`, alone or under a launcher. It needs no config.

The table has the devices and versions, the time of a step of a residual network in each precision, and the precision to
set. Without a GPU, one line gives the reason, and the exit code is 1. `tfdist all_reduce` measures the network.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.tools import measure, tables

# Examples per replica of a step, and steps.
BATCH, STEPS = 256, 20
# Four times as wide as in its paper: its matrix products keep a large GPU busy.
MODEL = {"target": "tfdist.zoo.models:cifar_resnet", "depth": 20, "num_classes": 10, "width": 64}
_PRECISIONS = ("float32", "bfloat16", "float16")
# A precision is preferred to float32, and float16 to bfloat16, if it is faster by this factor.
_WORTHWHILE = 1.1


def measure_all() -> int:
    """Measures and prints the table on the chief; returns the exit code."""
    from tfdist.cluster import strategy
    from tfdist.cluster.devices import host_gpus

    plan = strategy.plan(config_lib.ClusterOptions())
    if not plan.gpus:
        raise ValueError(f"--gpu: no GPU: {host_gpus.why_none(os.environ)}")
    cluster = strategy.connect(plan)
    rows = measure_rows(cluster)
    if cluster.is_chief:
        print("\n".join(cluster.roster.short_lines(verbose=True)))
        print(tables.text(("GPU", "result"), rows))
    cluster.leave()
    return 0


def measure_rows(cluster: Any) -> list[tuple[str, str]]:
    """Returns the rows of the table. Collective: all workers call it."""
    from tfdist.cluster.devices import gpu_software

    found, replicas = gpu_software.describe(os.environ), cluster.num_replicas
    rows = [("devices", f"{replicas} x {describe(found)}" if found else f"{replicas} replica(s) on the CPU")]
    rows += [("code", note) for note in gpu_software.notes(found)]
    seconds: dict[str, float] = {}
    for precision in _PRECISIONS:
        seconds[precision] = step_seconds(cluster, precision)
        rate = BATCH * replicas / seconds[precision]
        rows.append((f"step {precision}", f"{1e3 * seconds[precision]:.3g} ms, {rate:,.0f} examples/s"))
    precision = recommend_precision(seconds)
    gain = seconds["float32"] / seconds[precision]
    rows.append(("precision", f"config.train.precision={precision}: {gain:.2f} times the speed of float32"))
    return rows


def describe(found: Mapping[str, Any]) -> str:
    """Returns a line about a worker's GPUs and their software; `found` is a result of `gpu_software.describe`."""
    names = dict.fromkeys(f"{gpu['name']} (compute capability {gpu['compute_capability']})" for gpu in found["gpus"])
    versions = ", ".join(f"{label} {found[label.lower()]}" for label in ("driver", "CUDA", "cuDNN", "NCCL"))
    return f"{', '.join(names)}; {versions}; TF32 {'on' if found['tf32'] else 'off'}"


def step_seconds(cluster: Any, precision: str) -> float:
    """Seconds of a step of `MODEL` on images of 32x32 pixels, from memory."""
    from tfdist.training import setup

    source = {"target": "tfdist.zoo.sources:synthetic", "num_examples": 4 * BATCH * cluster.num_replicas}
    batch = BATCH * cluster.num_replicas
    config = config_lib.Config(
        model=dict(MODEL),
        data=config_lib.Data(source=source, evaluation_split=None, batch_size=batch, cache="raw"),
        train=config_lib.Train(steps=STEPS, precision=precision),
        checkpoint=config_lib.Checkpoint(export=False),
    )
    with tempfile.TemporaryDirectory() as folder:
        return measure.step_seconds(setup.build_run(config, Path(folder), cluster), STEPS)


def recommend_precision(seconds: Mapping[str, float]) -> str:
    """Returns float32, or a 16-bit precision if a tenth faster; float16 only if a tenth faster than bfloat16."""
    # bfloat16 needs no loss scaling.
    fastest = "bfloat16" if seconds["bfloat16"] <= _WORTHWHILE * seconds["float16"] else "float16"
    return fastest if _WORTHWHILE * seconds[fastest] < seconds["float32"] else "float32"
