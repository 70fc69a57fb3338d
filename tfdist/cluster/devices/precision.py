"""`config.train.precision = "auto"`: the precision that the devices compute fastest, chosen once for a run.

The chief chooses for all workers, and its choice replaces "auto" in the run's config: config.json has it, and a resume
keeps it on any device.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import onednn
from tfdist.config import schema, specs

# From the most precise one on.
PRECISIONS = dict(specs.choices(schema.Communication))["dtype"]
# bfloat16 is chosen on a CPU if a product of matrices takes less than this fraction of its time in float32.
_WORTHWHILE = 0.8
# Seconds of CPU time that the measurement takes, besides the first product of each type; rows of the matrices.
# Other programs on the machine make the ratio of two short wall-clock times useless.
_SECONDS, _ROWS = 0.05, 512
# CPU flags of processors that multiply vectors of bfloat16 (x86 and ARM).
_VECTORS = ("avx512_bf16", "bf16")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The properties of a replica's device that decide how fast it multiplies in each precision."""

    # "GPU" or "CPU".
    type: str
    # (major, minor) of a GPU of NVIDIA; None: not known.
    compute_capability: tuple[int, int] | None = None
    # Flags of /proc/cpuinfo.
    cpu_flags: frozenset[str] = frozenset()

    @property
    def code(self) -> int:
        """A number for the kind of device: 10 * major + minor of a GPU, 1 if it is not known; 0, -1, -2 for CPUs."""
        if self.type == "GPU":
            return (
                1 if self.compute_capability is None else 10 * self.compute_capability[0] + self.compute_capability[1]
            )
        return -2 if onednn.TILES in self.cpu_flags else -1 if self.cpu_flags & {*_VECTORS} else 0


def kind(code: int) -> str:
    """Returns the words for a `Device.code`."""
    if code > 1:
        return f"a GPU of compute capability {code // 10}.{code % 10}"
    names = {1: "a GPU of unknown compute capability", -1: "a CPU with vectors of bfloat16", -2: "a CPU with AMX"}
    return names.get(code, "a CPU without bfloat16 instructions")


def choose(device: Device, *, bfloat16_ratio: float | None = None, float16_allowed: bool = True) -> str:
    """Returns the precision that `device` computes fastest: "float32", "bfloat16" or "float16".

    Args:
        bfloat16_ratio: time of a product of matrices in bfloat16, divided by that in float32; for a CPU without AMX.
            None: not measured.
        float16_allowed: whether the config supports loss scaling.
    """
    if device.type == "GPU":
        if device.compute_capability is None or device.compute_capability < (7, 0):
            return "float32"
        if device.compute_capability >= (8, 0):
            return "bfloat16"
        return "float16" if float16_allowed else "float32"
    fast = device.code == -2 or (bfloat16_ratio is not None and bfloat16_ratio < _WORTHWHILE)
    return "bfloat16" if fast else "float32"


def is_slow(precision: str, device: Device, bfloat16_ratio: float | None = None) -> bool:
    """Returns whether `device` computes more slowly in `precision` than in float32."""
    if precision == "float16":
        return device.type == "CPU"
    if precision == "float32" or device.code == -2:
        return False
    if device.type == "GPU":
        return device.compute_capability is None or device.compute_capability < (8, 0)
    return bfloat16_ratio is None or bfloat16_ratio > 1.0


def resolve(
    config: config_lib.Config, saved: str | None, cluster: Cluster
) -> tuple[config_lib.Config, tuple[str, ...]]:
    """Replaces `train.precision = "auto"` by the chief's choice, or by that of the run that is resumed. Collective.

    Args:
        saved: the precision in the config of the run that is resumed; None: it is a new run. The chief's counts.

    Returns:
        The config, with an explicit precision, and lines for the log.

    Raises:
        ValueError: the workers have different kinds of devices.
    """
    device = find_device(cluster)
    check_equal_kinds([int(code) for code in cluster.all_gather([device.code])[:, 0]])
    index, slow = 0, False
    if cluster.is_chief:
        ratio = measure_bfloat16() if device.code in (0, -1) else None
        float16_allowed = config.train.local_steps == 1 and not config.train.asynchronous
        chosen = saved if saved in PRECISIONS else choose(device, bfloat16_ratio=ratio, float16_allowed=float16_allowed)
        index, slow = PRECISIONS.index(chosen), is_slow(chosen, device, ratio)
    precision = PRECISIONS[cluster.broadcast(index)]
    lines = [f"precision {precision}: " + ("as saved in the workdir" if saved else f"chosen for {kind(device.code)}")]
    if slow:
        lines.append(f"{precision} is slower than float32 on {kind(device.code)}; a resumed run keeps its precision")
    return dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision)), tuple(lines)


def check_equal_kinds(codes: Sequence[int]) -> None:
    """Checks that the `Device.code` of all workers are equal; a ValueError names both kinds and a worker of each."""
    for rank, code in enumerate(codes):
        if code != codes[0]:
            raise ValueError(
                f'config.train.precision="auto" needs the same kind of device on all workers: worker 0 has '
                f"{kind(codes[0])}, worker {rank} has {kind(code)}. Set config.train.precision to "
                f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}."
            )


def find_device(cluster: Cluster, cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """Returns the device of this worker's replicas; of several GPUs, the one with the lowest compute capability."""
    if cluster.device_type == "CPU":
        text = cpuinfo.read_text() if cpuinfo.exists() else ""
        lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
        return Device(type="CPU", cpu_flags=frozenset(lines[0].partition(":")[2].split() if lines else ()))
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    capabilities = [one.get("compute_capability") for one in details]
    return Device(type="GPU", compute_capability=None if None in capabilities else min(capabilities, default=None))


def measure_bfloat16() -> float:
    """Returns the time of a product of matrices in bfloat16 divided by that in float32, on the CPU."""
    with tf.device("CPU:0"):
        products = [tf.ones([_ROWS, _ROWS], dtype) for dtype in (tf.float32, tf.bfloat16)]
        best = [float("inf")] * len(products)
        for matrix in products:  # The first product of each type makes its kernel.
            tf.linalg.matmul(matrix, matrix).numpy()
        end = time.process_time() + _SECONDS
        while time.process_time() < end:
            for index, matrix in enumerate(products):
                started = time.process_time()
                # A value of the result: the product may run after the call returns.
                tf.linalg.matmul(matrix, matrix)[0, 0].numpy()
                best[index] = min(best[index], time.process_time() - started)
    return best[1] / best[0]
