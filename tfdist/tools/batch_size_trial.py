"""One trial of a batch size: a few training steps in this process, and their memory."""

import json
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tfdist import config as config_lib
from tfdist.config import user_code
from tfdist.report import files
from tfdist.tools import measure

FITS, OUT_OF_MEMORY, TOO_FEW, REFUSED = "fits", "out of memory", "larger than the data set", "refused"
# Exit code of a worker that exceeded its limit: that of a process killed by the kernel (128 + SIGKILL).
_EXIT_OUT_OF_MEMORY = 137
_POLL_SECONDS = 0.01
# Fraction of the free memory that the workers of a host may use.
_FREE_FRACTION = 0.9
_STEPS = 2


def run_trial(config: config_lib.Config, batch: int, folder: Path, memory_mb: float | None) -> int:
    """Runs a few steps with `batch` examples per replica; returns the exit code.

    Args:
        config: of the run; this function changes its batch size and removes evaluations and callbacks.
        folder: gets a file with the result of each worker, for `combine`.
        memory_mb: limit of this worker on CPUs, in MiB; None: 90 % of the free memory, divided among the host's
            workers.

    Raises:
        ValueError: the data cannot be opened, or a step fails.
    """
    import tensorflow as tf

    from tfdist.cluster import strategy
    from tfdist.data import inputs as inputs_lib
    from tfdist.training import setup

    plan = strategy.plan(config.cluster, communication=config.communication)
    rank, replicas = plan.worker_spec.rank, plan.num_replicas
    found: dict[str, Any] = {"replicas": replicas}
    config.data.batch_size = batch * replicas
    config.data.evaluation_split = config.checkpoint.best_metric = None
    config.callbacks = []  # They may need an evaluation.
    config.train.epochs, config.train.steps, config.learning_rate.warmup_epochs = None, _STEPS + 1, 0.0
    if not plan.gpus:
        limit = memory_mb * 2**20 if memory_mb else _FREE_FRACTION * measure.free_bytes() / plan.worker_spec.local_size
        _limit_memory(limit, lambda: _write(folder, rank, found | {"result": OUT_OF_MEMORY}))
    try:
        found["examples"] = len(inputs_lib.open_source(config, config.data.train_split))
        if batch * replicas > found["examples"]:
            _write(folder, rank, found | {"result": TOO_FEW})
            return 0
        try:
            run = setup.build_run(config, folder / "run")
        except ValueError as error:
            _write(folder, rank, found | {"result": REFUSED, "reason": user_code.message(error)})
            return 0
        seconds = measure.step_seconds(run, _STEPS)
    except (tf.errors.OpError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or is_memory(error)):
            raise
        _write(folder, rank, found | {"result": OUT_OF_MEMORY})
        return _EXIT_OUT_OF_MEMORY
    memory = _peak_bytes(plan) / 2**20
    _write(folder, rank, found | {"result": FITS, "memory_mb": round(memory, 1), "step_ms": round(1e3 * seconds, 2)})
    run.cluster.leave()
    return 0


def is_memory(error: Any) -> bool:
    """Returns True if a `tf.errors.OpError` means that a device is out of memory."""
    import tensorflow as tf

    # CUDA's libraries report it with their own texts and other error codes.
    words = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED", "OOM when allocating")
    return isinstance(error, tf.errors.ResourceExhaustedError) or any(word in str(error) for word in words)


def combine(folder: Path, code: int) -> dict[str, Any] | None:
    """Returns {"result": FITS, TOO_FEW, ...} of what all workers have written; None: the trial failed otherwise."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("worker-*.json"))]
    for result in (OUT_OF_MEMORY, TOO_FEW, REFUSED):
        for one in found:
            if one["result"] == result:
                return one
    if code in (-9, _EXIT_OUT_OF_MEMORY):  # Killed by the kernel.
        return {"result": OUT_OF_MEMORY}
    if code or not found:
        return None
    return found[0] | {"memory_mb": max(one["memory_mb"] for one in found)}


def _peak_bytes(plan: Any) -> float:
    """Peak memory of a replica, in bytes; on CPUs, of the process divided by its replicas."""
    import tensorflow as tf

    if plan.gpus:
        devices = range(plan.local_replicas)
        return max(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / plan.local_replicas


def _limit_memory(limit: float, report: Callable[[], None]) -> None:
    """Starts a thread that calls `report` and ends this process once its resident memory exceeds `limit` bytes."""
    process = psutil.Process()

    def poll() -> None:
        while True:
            if process.memory_info().rss > limit:
                report()
                os._exit(_EXIT_OUT_OF_MEMORY)
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=poll, daemon=True).start()


def _write(folder: Path, rank: int, found: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / f"worker-{rank}.json", found)
