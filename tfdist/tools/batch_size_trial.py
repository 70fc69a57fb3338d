"""One trial of a batch size: a few training steps in this process, and the memory that they take."""

import json
import os
import resource
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.report import files
from tfdist.tools import measure

FITS, OUT_OF_MEMORY, TOO_FEW = "fits", "out of memory", "more than the examples"
# Ended by itself because it took more than its share, as the kernel would have ended it: SIGKILL.
_EXIT_OUT_OF_MEMORY = 137
_LOOK_SECONDS = 0.01
# What is left of the free memory to everything else.
_SHARE = 0.9
_STEPS = 2


def run_trial(config: config_lib.Config, batch: int, folder: Path, memory_mb: float | None) -> int:
    """Runs a few steps with `batch` examples on each replica, and writes what it found into `folder`.

    Args:
        config: of the run; its batch size is replaced, evaluations and callbacks are left out.
        batch: examples of a replica.
        folder: gets a file from each worker; see `judge`.
        memory_mb: what this worker may take on a CPU, in MiB; None: its share of what is free.

    Returns:
        The exit code.

    Raises:
        ValueError: the config cannot be used.
    """
    import tensorflow as tf

    from tfdist.cluster import cluster, strategy
    from tfdist.training import setup

    plan = strategy.plan(config.cluster)
    rank, replicas = plan.worker_spec.rank, plan.num_replicas
    pieces = config.train.micro_batches * config.train.local_steps
    found: dict[str, Any] = {"replicas": replicas}
    config.data.batch_size = batch * replicas
    config.data.evaluation_split = config.checkpoint.best_metric = None
    config.callbacks = []  # They may look for an evaluation.
    config.train.epochs, config.train.steps, config.learning_rate.warmup_epochs = None, _STEPS + 1, 0.0
    if not plan.gpus:
        limit = memory_mb * 2**20 if memory_mb else _SHARE * measure.free_bytes() / plan.worker_spec.local_size
        _watch(limit, lambda: _write(folder, rank, found | {"result": OUT_OF_MEMORY}))
    try:
        if batch % pieces == 0 and batch * replicas > len(setup.open_source(config, config.data.train_split)):
            _write(folder, rank, found | {"result": TOO_FEW})
            return 0
        run = setup.build_run(config, folder / "run")
        seconds = measure.step_seconds(run, _STEPS)
    except (tf.errors.OpError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or is_memory(error)):
            raise
        _write(folder, rank, found | {"result": OUT_OF_MEMORY})
        return _EXIT_OUT_OF_MEMORY
    memory = _peak_bytes(plan) / 2**20
    _write(folder, rank, found | {"result": FITS, "memory_mb": round(memory, 1), "step_ms": round(1e3 * seconds, 2)})
    cluster.leave(run.cluster)
    return 0


def is_memory(error: Any) -> bool:
    """Whether an error of TensorFlow, a `tf.errors.OpError`, says that a device has no memory left."""
    import tensorflow as tf

    # CUDA's libraries say it in words of their own, under other codes.
    words = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED", "OOM when allocating")
    return isinstance(error, tf.errors.ResourceExhaustedError) or any(word in str(error) for word in words)


def combine(folder: Path, code: int) -> dict[str, Any] | None:
    """Puts together what the workers of a trial have written; None where it failed of something else than memory."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("worker-*.json"))]
    for result in (OUT_OF_MEMORY, TOO_FEW):
        for one in found:
            if one["result"] == result:
                return one
    if code in (-9, _EXIT_OUT_OF_MEMORY):  # The kernel was quicker.
        return {"result": OUT_OF_MEMORY}
    if code or not found:
        return None
    return found[0] | {"memory_mb": max(one["memory_mb"] for one in found)}


def clear(folder: Path) -> None:
    """Removes what an earlier trial has left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _peak_bytes(plan: Any) -> float:
    """The most memory that a replica has taken; on CPUs of the whole process, over its replicas."""
    import tensorflow as tf

    if plan.gpus:
        devices = range(plan.local_replicas)
        return max(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / plan.local_replicas


def _watch(limit: float, say: Any) -> None:
    """Ends this process as soon as it holds more than `limit` bytes of memory."""
    page = os.sysconf("SC_PAGE_SIZE")

    def look() -> None:
        while True:
            if int(Path("/proc/self/statm").read_text().split()[1]) * page > limit:
                say()
                os._exit(_EXIT_OUT_OF_MEMORY)
            time.sleep(_LOOK_SECONDS)

    if os.path.exists("/proc/self/statm"):
        threading.Thread(target=look, daemon=True).start()


def _write(folder: Path, rank: int, found: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / f"worker-{rank}.json", found)
