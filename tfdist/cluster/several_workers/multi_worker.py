"""Starts several workers: rendezvous, the strategy over all of them, heartbeats, and a first all-reduce."""

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as collective

from tfdist.cluster import interruption, numerics, planning
from tfdist.cluster.control import decision, keys, rendezvous, watchdog
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.control.keys import Key
from tfdist.cluster.devices import eager_context, gpu_software, machine, onednn, replicas
from tfdist.cluster.discovery import cluster_resolver as cluster_resolver_lib
from tfdist.cluster.discovery import gpus, hostlist
from tfdist.cluster.planning import ClusterPlan, Started
from tfdist.cluster.several_workers import tcp_ring
from tfdist.config import patching, user_code

# Seconds to wait for the chief's server: if a worker connects too early, TensorFlow retries only after a second.
_CHIEF_SECONDS = 1.0
# Time limit in seconds to connect the ring over TCP: all workers are ready, but a firewall may drop packets.
_RING_SECONDS = 20.0
# Name of the first collective in messages: workers that connect by TCP may still not reach each other with NCCL.
PURPOSE = "the first all-reduce"
# Minimum time limit in seconds if the driver compiles the GPU kernels at their first use.
_COMPILE_SECONDS = 600.0
_ADVICE = (
    "If the driver still compiles kernels for the GPUs (docs/gpu.md), increase config.cluster.connect_seconds. If not, "
    "their devices cannot exchange data: with NCCL, set NCCL_SOCKET_IFNAME to the network interface between the hosts, "
    "such as ib0, and NCCL_DEBUG=INFO for its log; otherwise, look for a firewall between the hosts"
)


def start(
    planned: ClusterPlan,
    must_match: Mapping[str, str],
    workdir: os.PathLike | str | None,
    stop: interruption.StopRequest | None,
) -> Started:
    """Connects to all other workers; see `strategy.connect`."""
    spec, options, seconds = planned.worker_spec, planned.options, planned.options.connect_seconds
    notes = []
    listener = watchdog.listen(spec)
    ports = {"heartbeat_port": listener.getsockname()[1]} if listener else {}
    ring_listener = None
    if planned.implementation == "tcp":
        ring_listener, of_ring = tcp_ring.listen()
        ports |= of_ring
    key = keys.load(spec.job, os.environ)
    members = _rendezvous(planned, must_match, workdir, ports, stop, key)
    # Before the devices are listed: a worker may die in that time.
    monitor = watchdog.start(rank=spec.rank, members=members, listener=listener, options=options, key=key)
    planning.configure_devices(planned)
    details = _add_second_thread(planned, members)
    if len(names := sorted({worker["processor"] for worker in members})) > 1:
        notes.append(f"the workers have different processors, which round differently: {', '.join(names)}")
    with interruption.block_signals():
        if spec.rank:
            _wait_for_server(members[0]["address"])
        strategy = _make_strategy(planned, [worker["address"] for worker in members])
    monitor.tell({"started": True})  # After a loss, this process now ends itself.
    ring = None
    with contextlib.suppress(OSError):  # No connection with the next or the previous worker.
        ring = ring_listener and tcp_ring.connect(spec.rank, members, ring_listener, key, _RING_SECONDS)
    seconds = first_seconds(seconds, gpu_software.describe(os.environ))
    connected = count_connected(strategy, monitor, seconds, ring is not None)
    if connected == len(members):
        replicas.rings[:] = [ring]
    elif ring_listener:
        if ring is not None:
            ring.close()
        notes.append(f"{len(members) - connected} workers could not connect for the ring over TCP: gRPC is used")
    return Started(strategy=strategy, monitor=monitor, notes=notes, details=details)


def _rendezvous(
    planned: ClusterPlan,
    must_match: Mapping[str, str],
    workdir: os.PathLike | str | None,
    ports: Mapping[str, Any],
    stop: interruption.StopRequest | None,
    key: Key,
) -> list[dict[str, Any]]:
    common = {
        **numerics.settings(os.environ),
        **{f"{decision.FILE}{name}": value for name, value in user_code.hashes().items()},
        "devices per worker": planned.devices,
        f"oneDNN, of {onednn.VARIABLE}": "on" if onednn.enabled() else "off",
    }
    return rendezvous.rendezvous(
        planned.worker_spec,
        must_match=common | dict(must_match),
        metadata={"devices": planned.devices, "processor": onednn.read_processor().name} | ports,
        exclusive=gpus.held_gpus(planned.worker_spec, planned.gpus),
        seconds=planned.options.connect_seconds,
        workdir=workdir,
        stop=stop,
        key=key,
    )


def _wait_for_server(address: str) -> None:
    """Waits, for at most a second, until the TensorFlow server at `address` listens."""
    target, until = hostlist.split_address(address), time.monotonic() + _CHIEF_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(target, _CHIEF_SECONDS):
            return
        time.sleep(0.01)


@planning.explain_late_configuration()
def _add_second_thread(planned: ClusterPlan, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Gives a worker with one core a second thread for ops, if the workers are on several hosts.

    With one thread, TensorFlow sends the first gradients only after computing the last. Measured with ResNet50V2 over
    1 Gbit/s (docs/speed.md). On one host nothing is gained, and steps of small networks take longer.
    """
    hosts = {worker["address"].rpartition(":")[0] for worker in members}
    chosen = os.environ.get("TF_NUM_INTEROP_THREADS") or tf.config.threading.get_inter_op_parallelism_threads()
    if planned.device_type != "CPU" or len(hosts) < 2 or chosen or machine.num_cores() > 1:
        return []
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return ["two threads for ops on one core, so that gradients are sent during the backward pass"]


def first_seconds(seconds: float, gpus: Mapping[str, Any]) -> float:
    """Returns the time limit of the first all-reduce, longer than `seconds` if the driver compiles kernels for `gpus`.

    Args:
        gpus: what `gpu_software.describe` returns.
    """
    compiles = any(gpu["code"] == "PTX" for gpu in gpus.get("gpus", ()))
    return max(seconds, _COMPILE_SECONDS) if compiles else seconds


@planning.explain_late_configuration()
def _make_strategy(planned: ClusterPlan, addresses: list[str]) -> tf.distribute.Strategy:
    jobs = [collective.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(addresses))]
    # Twice the limit of our heartbeats, so that these detect a loss first and name the worker.
    eager_context.configure_coordination(jobs, 2 * planned.options.heartbeat_seconds)
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if planned.implementation == "nccl" else communication.RING
    )
    cluster_resolver = cluster_resolver_lib.resolver(
        planned.worker_spec, addresses, num_gpus=planned.local_replicas if planned.device_type == "GPU" else 0
    )

    def logical_devices(original: Any, self: Any, cluster_resolver: Any, worker_device: str) -> tuple[Any, str]:
        return tuple(f"{worker_device}/device:CPU:{i}" for i in range(planned.local_replicas)), "CPU"

    with contextlib.ExitStack() as stack:
        if planned.device_type == "CPU" and planned.local_replicas > 1:
            # TensorFlow gives a CPU worker one replica; tests need several, as on a worker with several GPUs.
            owner = collective.CollectiveAllReduceExtended
            stack.enter_context(patching.patch(owner, "_initialize_local_devices", logical_devices))
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver, communication_options=options)


def count_connected(
    strategy: tf.distribute.Strategy, monitor: HeartbeatMonitor, seconds: float, connected: bool
) -> int:
    """Returns on how many workers `connected` is true; runs a first all-reduce over all replicas, on their devices.

    Raises:
        tf.errors.DeadlineExceededError: it did not end in time. The chief announces which workers are missing.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)

    def add() -> tf.Tensor:
        values = tf.constant([1.0, float(connected)])
        return tf.distribute.get_replica_context().all_reduce("SUM", values, options=options)

    @tf.function(autograph=False)
    def total() -> list[tf.Tensor]:
        return strategy.experimental_local_results(strategy.run(add))

    try:
        with monitor.in_collective(PURPOSE):
            found = [value.numpy() for value in total()]
        if any(replicas != strategy.num_replicas_in_sync for replicas, _ in found):
            raise RuntimeError(f"{strategy.num_replicas_in_sync} replicas added up to {found}")
        return round(found[0][1]) // len(found)
    except tf.errors.DeadlineExceededError:
        if monitor.rank == 0:
            text = f"{PURPOSE} did not end within {seconds:g} s (config.cluster.connect_seconds): "
            monitor.mark_lost(text, absent_in=(PURPOSE, _ADVICE))
        raise
