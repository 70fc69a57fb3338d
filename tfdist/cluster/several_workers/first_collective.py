"""A first all-reduce with a time limit: workers that can connect by TCP may still not reach each other with NCCL."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.cluster.liveness import peer_loss
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor

PURPOSE = "the first all-reduce"
# Seconds that are always allowed if the driver compiles the kernels of the GPUs at their first use.
_COMPILE_SECONDS = 600.0
_ADVICE = (
    "If the driver still compiles kernels for the GPUs (docs/gpu.md), increase config.cluster.connect_seconds. If not, "
    "their devices cannot exchange data: with NCCL, set NCCL_SOCKET_IFNAME to the network interface between the hosts, "
    "such as ib0, and NCCL_DEBUG=INFO for its log; otherwise, look for a firewall between the hosts"
)


def limit(connect_seconds: float, software: Mapping[str, Any]) -> float:
    """Returns the time limit in seconds; `software` is what `gpu_software.describe` returned on this worker."""
    compiles = any(gpu["code"] == "PTX" for gpu in software.get("gpus", ()))
    return max(connect_seconds, _COMPILE_SECONDS) if compiles else connect_seconds


def count(strategy: tf.distribute.Strategy, monitor: HeartbeatMonitor, seconds: float, one: bool) -> int:
    """Returns the number of workers with `one`: a first sum over all replicas, on the devices that compute.

    Raises:
        tf.errors.DeadlineExceededError: it did not end in time. The chief has announced which workers are missing.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)

    def add() -> tf.Tensor:
        values = tf.constant([1.0, float(one)])
        return tf.distribute.get_replica_context().all_reduce("SUM", values, options=options)

    @tf.function(autograph=False)
    def total() -> list[tf.Tensor]:
        return strategy.experimental_local_results(strategy.run(add))

    try:
        with monitor.in_collective(PURPOSE):
            found = [value.numpy() for value in total()]
        assert all(replicas == strategy.num_replicas_in_sync for replicas, _ in found), found
        return round(found[0][1]) // len(found)
    except tf.errors.DeadlineExceededError:
        if monitor.rank == 0:
            monitor.loop.call_soon_threadsafe(peer_loss.declare_lost, monitor, explain(monitor, seconds))
        raise


def explain(monitor: HeartbeatMonitor, seconds: float) -> str:
    """Returns why the first all-reduce took longer than `seconds`, as the chief sees it."""
    text = f"{PURPOSE} did not end within {seconds:g} s (config.cluster.connect_seconds): "
    waiting = {rank for rank, peer in monitor.peers.items() if peer.waits is not None and peer.waits[0] == PURPOSE}
    missing = [rank for rank in range(1, len(monitor.members)) if rank not in waiting]
    if missing:
        names = ", ".join(peer_loss.worker_name(monitor, rank) for rank in missing)
        return f"{text}{names} did not reach it"
    return f"{text}all workers have started it. {_ADVICE}"
