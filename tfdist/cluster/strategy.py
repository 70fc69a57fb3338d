"""Connects the workers and creates the one `tf.distribute` strategy of this process."""

import os
import socket
from collections.abc import Mapping

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster import interruption, mirrored_variables
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.control import decision, heartbeat_monitor
from tfdist.cluster.devices import gpu_software, onednn, replicas
from tfdist.cluster.discovery.roster import Roster
from tfdist.cluster.planning import ClusterPlan, Started, configure_devices, plan


def connect(
    plan_or_options: ClusterPlan | config_lib.ClusterOptions | None = None,
    *,
    must_match: Mapping[str, str] | None = None,
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
) -> Cluster:
    """Connects to all other workers and creates the strategy; once per process, before other TensorFlow operations.

    Args:
        plan_or_options: the result of `plan`, or the options for it; None: default options.
        must_match: name -> value that must be equal on all workers; versions are always compared.
        workdir: a directory that all workers must share, created if missing; None: not checked.
        stop: this worker's stop request; None: it cannot be stopped.

    Returns:
        The cluster. Its strategy is MultiWorkerMirroredStrategy, or MirroredStrategy if there is one worker.

    Raises:
        StopError: a worker received a stop request before all were connected.
        TimeoutError: some workers did not connect within `connect_seconds`; lists ranks and hosts.
        ValueError: the workers' `must_match` values differ, the environment is not valid, or there is no key.
        OSError: this worker's port is in use, or `workdir` cannot be written or is not shared.
    """
    planned = plan_or_options if isinstance(plan_or_options, ClusterPlan) else plan(plan_or_options)
    if planned.num_workers > 1:
        from tfdist.cluster.several_workers import multi_worker

        os.environ.update(grpc_proxy="")  # No proxy between workers; downloads keep theirs.
        started = multi_worker.start(planned, must_match or {}, workdir, stop)
    else:
        started = _start_alone(planned, stop)
    if started.strategy.num_replicas_in_sync != planned.num_replicas:
        raise RuntimeError(f"{started.strategy.num_replicas_in_sync} replicas instead of {planned.num_replicas}")
    mirrored_variables.add_methods()
    implementation = "ring" if planned.implementation == "tcp" and not replicas.rings else planned.implementation
    notes = [planned.worker_spec.note, *gpu_software.notes(gpu_software.describe(os.environ)), *started.notes]
    on = "on" if onednn.enabled() else "off"
    roster = Roster(
        workers=started.monitor.members,
        communication={"nccl": "NCCL", "ring": "RING over gRPC", "tcp": "RING over TCP"}[implementation],
        notes=tuple(filter(None, notes)),
        details=(f"oneDNN {on}; to change it, set {onednn.VARIABLE}=0 or 1 in the environment", *started.details),
    )
    return Cluster(
        strategy=started.strategy,
        rank=planned.worker_spec.rank,
        num_workers=planned.num_workers,
        num_replicas=planned.num_replicas,
        implementation=implementation,
        roster=roster,
        monitor=started.monitor,
    )


def _start_alone(planned: ClusterPlan, stop: interruption.StopRequest | None) -> Started:
    addresses = planned.worker_spec.addresses
    if stop is not None and stop.reason is not None:
        decision.members_or_raise(decision.stop({0: stop.reason}, addresses))
    configure_devices(planned)
    devices = [f"/{planned.device_type}:{index}" for index in range(planned.local_replicas)]
    # MirroredStrategy has no ring over the GPUs of one process; this is its reduction without NCCL.
    without_nccl = planned.gpus and planned.implementation == "ring"
    sums = tf.distribute.ReductionToOneDevice() if without_nccl else None
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=sums)
    me = {"rank": 0, "address": (addresses or ("localhost",))[0], "host": socket.gethostname(), "pid": os.getpid()}
    members = [me | {"devices": planned.devices}]
    # It sends no messages, and only watches this process.
    monitor = heartbeat_monitor.start(rank=0, members=members, options=planned.options)
    return Started(strategy=strategy, monitor=monitor)
