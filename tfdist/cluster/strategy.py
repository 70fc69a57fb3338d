"""Makes the one `tf.distribute` strategy of this process, and what the loop needs to know of it."""

import dataclasses
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.distribute import collective_all_reduce_strategy as collective
from tensorflow.python.eager import context

from tfdist import config as config_lib
from tfdist import interruption
from tfdist.cluster import alone, environment, iterators, memory, peers, preflight, resolver, starting
from tfdist.cluster import placement as placement_lib

# How long a worker that has finished waits for the others before it leaves.
SHUTDOWN_SECONDS = 600.0
_PIECE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who will take part, known before any device is touched."""

    placement: placement_lib.Placement
    options: config_lib.Cluster
    # Indices into the GPUs that TensorFlow lists in this process; empty: the replicas run on the CPU.
    gpus: tuple[int, ...]
    # Replicas of this worker, and of each other one.
    local_replicas: int

    @property
    def device_type(self) -> str:
        return "GPU" if self.gpus else "CPU"

    @property
    def num_workers(self) -> int:
        return self.placement.num_workers

    @property
    def num_replicas(self) -> int:
        return self.num_workers * self.local_replicas


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The workers of this run, seen from one of them."""

    strategy: tf.distribute.Strategy
    rank: int
    num_workers: int
    num_replicas: int
    # One line per worker, in rank order: who it is, which devices it holds, how they talk; and a warning where the
    # environment looks as if something else was meant, such as a forgotten srun.
    roster: tuple[str, ...]
    # Watches the other workers; None where there are none.
    peers: peers.Peers | None

    @property
    def is_chief(self) -> bool:
        """Whether this worker, rank 0, is the one that writes and prints."""
        return self.rank == 0

    def scope(self) -> AbstractContextManager:
        """The scope in which models, optimizers and metrics are made."""
        return self.strategy.scope()

    def distribute(self, dataset: tf.data.Dataset) -> Iterator:
        """Returns an iterator over this worker's `dataset`, which has an element per local replica and step."""
        return iterators.distribute(self.strategy, dataset)

    def holds(self, variable: tf.Variable) -> bool:
        """Whether `variable` was made in the scope of this cluster."""
        return self.strategy.extended.variable_created_in_scope(variable)

    def gather(self, value: tf.Tensor) -> tf.Tensor:
        """Puts the replicas' values [n, ...] below each other, in their order; `n` may differ. All must call it."""
        return self.strategy.gather(value, axis=0)

    def from_chief(self, value: int) -> int:
        """Returns the chief's `value` on every worker; all must call it."""
        return self._sum(value, lambda mine: tf.where(replica_id() == 0, mine, 0))

    def any(self, value: bool) -> bool:
        """Returns whether `value` is true of any worker; all must call it."""
        return self._sum(value, lambda mine: mine) > 0

    def bytes_from_chief(self, value: bytes) -> bytes:
        """Returns the chief's `value` on every worker; all must call it."""
        size = self.from_chief(len(value))
        if self.num_workers == 1 or size == 0:
            return value[:size]
        mine = np.frombuffer(value, np.uint8) if self.is_chief else np.zeros(size, np.uint8)
        (chiefs,) = self._make_chiefs()([tf.constant(mine, tf.int32)])
        return chiefs.numpy().astype(np.uint8).tobytes()

    def _sum(self, value: int, part: Callable[[tf.Tensor], tf.Tensor]) -> int:
        if self.num_workers == 1:
            return int(value)
        alone.check("to talk to the other workers")

        @tf.function(autograph=False)
        def share(mine: tf.Tensor) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(part, (mine,)), axis=None)

        return int(share(tf.constant(int(value), tf.int64)))

    def _make_chiefs(self) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
        @tf.function(autograph=False)
        def share(mine: list[tf.Tensor]) -> list[tf.Tensor]:
            chosen = self.strategy.run(
                lambda: [tf.where(replica_id() == 0, value, tf.zeros_like(value)) for value in mine]
            )
            return [self.strategy.reduce("SUM", value, axis=None) for value in chosen]

        return share

    def make_copy_from_chief(self, variables: Iterable[Any]) -> Callable[[], None]:
        """Makes a function that gives every worker the chief's values of these variables; all must call it.

        Args:
            variables: of Keras or TensorFlow; those that hold no floats and no signed integers are passed over.
        """
        kinds = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
        copied = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
        copied = [variable for variable in copied if tf.as_dtype(variable.dtype) in kinds]
        if self.num_workers == 1 or not copied:
            return lambda: None
        share = self._make_chiefs()

        def copy() -> None:
            alone.check("to copy variables")
            for variable, value in zip(copied, share([tf.convert_to_tensor(one) for one in copied]), strict=True):
                variable.assign(value)

        return copy

    def copy_from_chief(self, variables: Iterable[Any]) -> None:
        """Gives every worker the chief's values of these Keras variables; all must call it."""
        self.make_copy_from_chief(variables)()

    def make_gather(self) -> Callable[[Sequence[float]], np.ndarray]:
        """Makes a function that gives every worker the numbers of all: [k] -> float64 [num_workers, k].

        All workers must call it with equally many.
        """
        if self.num_workers == 1:
            return lambda mine: np.array([mine], np.float64)
        local_replicas = self.num_replicas // self.num_workers

        def one_row(mine: tf.Tensor) -> tf.Tensor:
            # The first replica of each worker fills its row; the sum over replicas puts the rows together.
            first = tf.equal(tf.range(self.num_workers) * local_replicas, replica_id())
            return tf.where(first[:, tf.newaxis], mine[tf.newaxis], tf.zeros([], tf.float64))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.float64)])
        def gather(mine: tf.Tensor) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(one_row, args=(mine,)), axis=None)

        def told(mine: Sequence[float]) -> np.ndarray:
            alone.check("to talk to the other workers")
            return gather(tf.constant(mine, tf.float64)).numpy()

        return told

    @property
    def variables_are_central(self) -> bool:
        """Whether each variable exists once, and what replicas assign or add to it is joined to one value before."""
        return isinstance(self.strategy, tf.distribute.experimental.CentralStorageStrategy)

    def average_updates(self, variables: Iterable[Any]) -> None:
        """Where variables are central, makes what replicas assign to these Keras variables one value: the mean."""
        if self.variables_are_central:
            for variable in variables:
                variable.value._aggregation = tf.VariableAggregation.MEAN

    def progress(self, step: int) -> None:
        """Notes that a call has ended, after so many finished steps; one that never ends is noticed by the next."""
        if self.peers is not None:
            self.peers.progress(step)

    def pause(self) -> None:
        """Notes that no call is under way, and that until the next nothing can be said about when one ends."""
        if self.peers is not None:
            self.peers.pause()


def replica_id() -> tf.Tensor:
    """The index of the calling replica among all replicas, int32 []; to be called in `strategy.run`."""
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def plan(options: config_lib.Cluster | None = None, env: Mapping[str, str] | None = None) -> Plan:
    """Finds out who takes part, from a Slurm step, TF_CONFIG, an MPI launcher, or this machine alone.

    No device is initialised and no port is opened. See `environment.resolve` for the order and the variables.

    Raises:
        ValueError: the environment contradicts itself, or lacks a variable.
    """
    options = options or config_lib.Cluster()
    placement = environment.resolve(
        os.environ if env is None else env, port_base=options.port_base, port_count=options.port_count
    )
    gpus = placement_lib.visible_gpus(placement, len(tf.config.list_physical_devices("GPU")))
    if gpus and options.logical_devices > 1:
        raise ValueError(
            f"config.cluster.logical_devices={options.logical_devices} splits a CPU, and this worker holds "
            f"{len(gpus)} GPUs: leave it at 1, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    if options.central_storage and placement.num_workers > 1:
        raise ValueError(
            f"config.cluster.central_storage keeps the weights in the memory of one machine, and there are "
            f"{placement.num_workers} workers: start one, with all its GPUs, or leave it off."
        )
    return Plan(
        placement=placement,
        options=options,
        gpus=gpus,
        local_replicas=len(gpus) or options.logical_devices,
    )


def connect(
    plan_or_options: Plan | config_lib.Cluster | None = None,
    *,
    facts: Mapping[str, str] | None = None,
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
) -> Cluster:
    """Meets all other workers, then makes the strategy: once per process, before any other TensorFlow operation.

    Args:
        plan_or_options: what `plan` returned, or the options to make a plan with, or None for the defaults.
        facts: name -> value of things that must be equal on all workers; versions are compared in any case.
        workdir: a directory that must be the same one for all workers, made where it is missing; None: not checked.
        stop: whether this worker is asked to stop; None: it cannot be.

    Returns:
        The cluster. Its strategy is MultiWorkerMirroredStrategy (NCCL with GPUs, RING without) for several workers,
        MirroredStrategy over the local GPUs or logical CPU devices for one.

    Raises:
        StopError: a worker was asked to stop before all had met.
        TimeoutError: some workers did not come within `connect_seconds`; names their ranks and hosts.
        ValueError: the workers' facts differ, or the environment cannot be understood.
        OSError: this worker's port is taken, or `workdir` cannot be written or is not shared.
    """
    if not isinstance(plan_or_options, Plan):
        plan_or_options = plan(plan_or_options)
    placement = plan_or_options.placement
    preflight.unset_proxies(os.environ)
    notes = [placement.note]
    if memory.keep_freed(plan_or_options.options, os.environ):
        notes.append("malloc keeps freed memory; --config.cluster.keep_freed_memory=false turns that off")
    listener = peers.listen(placement)
    port = {"heartbeat_port": listener.getsockname()[1]} if listener else {}
    roster = _meet(plan_or_options, facts or {}, workdir, port, stop)
    _set_visible_devices(plan_or_options)
    if plan_or_options.num_workers > 1:
        limited = starting.limited(placement.rank, roster, plan_or_options.options.connect_seconds)
        with limited, interruption.held_back():
            strategy = _multi_worker_strategy(plan_or_options, [worker["address"] for worker in roster])
    else:
        devices = [f"/{plan_or_options.device_type}:{index}" for index in range(plan_or_options.local_replicas)]
        if plan_or_options.options.central_storage:
            strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "/CPU:0")
        else:
            strategy = tf.distribute.MirroredStrategy(devices)
    assert strategy.num_replicas_in_sync == plan_or_options.num_replicas
    watching = None
    if plan_or_options.num_workers > 1:
        watching = peers.watch(rank=placement.rank, roster=roster, listener=listener, options=plan_or_options.options)
    return Cluster(
        strategy=strategy,
        rank=placement.rank,
        num_workers=plan_or_options.num_workers,
        num_replicas=plan_or_options.num_replicas,
        roster=(*(_roster_line(worker, plan_or_options) for worker in roster), *filter(None, notes)),
        peers=watching,
    )


def global_seed() -> int | None:
    """What `tf.random.set_seed` was given, or None."""
    return context.global_seed()


def leave(cluster: Cluster) -> None:
    """Waits for all workers to finish: one that exits early makes the others fail in about 8 s."""
    if cluster.peers is not None:
        cluster.peers.finish(SHUTDOWN_SECONDS)


def _meet(
    plan_: Plan,
    facts: Mapping[str, str],
    workdir: os.PathLike | str | None,
    port: Mapping[str, int],
    stop: interruption.StopRequest | None,
) -> list[dict]:
    devices = f"{plan_.local_replicas} {plan_.device_type}{'s' if plan_.local_replicas > 1 else ''}"
    common = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "devices per worker": devices,
    }
    return preflight.check(
        plan_.placement,
        facts=common | dict(facts),
        about={"devices": devices} | dict(port),
        holds=placement_lib.held_gpus(plan_.placement, plan_.gpus),
        seconds=plan_.options.connect_seconds,
        workdir=workdir,
        stop=stop,
    )


def _set_visible_devices(plan_: Plan) -> None:
    if plan_.gpus:
        # Never through CUDA_VISIBLE_DEVICES: what a site or Slurm wrote there (MIG UUIDs, say) stays as it is.
        listed = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices([listed[index] for index in plan_.gpus], "GPU")
    elif plan_.local_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(plan_.local_replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)


def _multi_worker_strategy(plan_: Plan, addresses: list[str]) -> tf.distribute.Strategy:
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        # Twice as patient as peers.py, which then is the first to notice, and names who it was.
        heartbeat_timeout_in_ms=int(2 * plan_.options.heartbeat_seconds * 1000),
        coordinated_jobs=[collective.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(addresses))],
    )
    _send_in_large_pieces()
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if plan_.device_type == "GPU" else communication.RING
    )
    cluster_resolver = resolver.resolver(
        plan_.placement, addresses, num_gpus=plan_.local_replicas if plan_.device_type == "GPU" else 0
    )
    extended = collective.CollectiveAllReduceExtended
    original = extended._initialize_local_devices
    if plan_.device_type == "CPU" and plan_.local_replicas > 1:
        # TensorFlow gives a CPU worker one replica; several stand in for a worker with several GPUs in tests.
        def several(self, cluster_resolver, worker_device):
            del self, cluster_resolver
            return tuple(f"{worker_device}/device:CPU:{i}" for i in range(plan_.local_replicas)), "CPU"

        extended._initialize_local_devices = several
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver, communication_options=options)
    finally:
        extended._initialize_local_devices = original


def _send_in_large_pieces() -> None:
    # TensorFlow cuts what a worker sends into pieces of 4 KB and copies each: a sixth of a sum's processor time.
    session = context.context()
    settings = session._config or config_pb2.ConfigProto()
    if not settings.experimental.recv_buf_max_chunk:
        settings.experimental.recv_buf_max_chunk = _PIECE_BYTES
    session._config = settings


def _roster_line(worker: dict, plan_: Plan) -> str:
    if plan_.num_workers == 1:
        talk = "in this process"
    else:
        talk = f"{'NCCL' if plan_.device_type == 'GPU' else 'RING over gRPC'} at {worker['address']}"
    return (
        f"worker {worker['rank']} of {plan_.num_workers}{' (chief)' if worker['rank'] == 0 else ''}: "
        f"host {worker['host']}, pid {worker['pid']}, {worker['devices']}, {talk}"
    )
