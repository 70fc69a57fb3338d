"""Replaces the tf.distribute strategies and cluster resolvers of a script of `tfdist.run` by those of the workers.

All workers run the script as chief, so a decision by the resolver's task is the same on all of them.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.cluster import distributed_dataset
from tfdist.cluster.cluster import Cluster
from tfdist.config import patching

# Result of `experimental_distribute_dataset` -> its dataset of global batches.
_datasets: weakref.WeakKeyDictionary[tf.distribute.DistributedDataset, tf.data.Dataset] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def replace_strategies(cluster: Cluster, log_once: Callable[[str], None]) -> Iterator[None]:
    """In the block, mirrored strategies of tf.distribute are the workers' strategy; other classes raise ValueError.

    The scope of the default strategy, which scripts use if they find no TPU, has no effect, as in Keras.
    """
    resolver = _resolver(cluster, log_once)
    mirrored = _strategy(cluster, resolver, "MirroredStrategy", log_once)
    multi_worker = _strategy(cluster, resolver, "MultiWorkerMirroredStrategy", log_once)
    experimental = tf.distribute.experimental
    refused = [
        *((tf.distribute, name) for name in ("OneDeviceStrategy", "ParameterServerStrategy", "TPUStrategy")),
        *((experimental, name) for name in ("CentralStorageStrategy", "ParameterServerStrategy", "TPUStrategy")),
    ]

    def refuse(original: Callable[..., None], self: tf.distribute.Strategy, *args: Any, **keywords: Any) -> None:
        raise ValueError(
            f"The script makes a tf.distribute {type(self).__name__}, but tfdist.run trains on all replicas alike: "
            "make a tf.distribute.MirroredStrategy, which is the strategy of all workers, or start the script without "
            "tfdist.run."
        )

    with contextlib.ExitStack() as stack:
        stack.enter_context(distributed_dataset.device_datasets_without_autotuning())
        for owner, name in refused:
            stack.enter_context(patching.patch(getattr(owner, name), "__init__", refuse))
        default = type(tf.distribute.get_strategy())
        stack.enter_context(patching.patch(default, "scope", lambda _, strategy: contextlib.nullcontext(strategy)))
        resolvers = tf.distribute.cluster_resolver
        for owner, name, kind in (
            (tf.distribute, "MirroredStrategy", mirrored),
            (tf.distribute, "MultiWorkerMirroredStrategy", multi_worker),
            (experimental, "MultiWorkerMirroredStrategy", multi_worker),
            (resolvers, "SlurmClusterResolver", resolver),
            (resolvers, "TFConfigClusterResolver", resolver),
        ):
            stack.enter_context(patching.restore_after([owner], [name]))
            patching.replace_attribute(owner, name, kind)
        yield


def _strategy(cluster: Cluster, resolver: type, name: str, log_once: Callable[[str], None]) -> type:
    """Returns a replacement for the class `name` of tf.distribute; the workers' strategy becomes its instance."""

    class Strategy(type(cluster.strategy)):
        def __new__(cls, *args: Any, **keywords: Any) -> tf.distribute.Strategy:
            cluster.strategy.__class__ = cls
            return cluster.strategy

        def __init__(self, *args: Any, **keywords: Any):
            """Does nothing, because the workers are connected; subclasses in the script may call it."""
            if name == "MirroredStrategy" and (args or "devices" in keywords):
                log_once(
                    f"the devices of the script's MirroredStrategy are ignored: its {cluster.num_replicas} replicas "
                    "are those that the launcher gives."
                )

        @property
        def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
            return resolver()

        def experimental_distribute_dataset(
            self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
        ) -> tf.distribute.DistributedDataset:
            tuned = distributed_dataset.without_autotuning(dataset)
            found = super().experimental_distribute_dataset(tuned, options)
            _datasets[found] = dataset
            return found

        def distribute_datasets_from_function(
            self, dataset_fn: Callable[..., tf.data.Dataset], options: tf.distribute.InputOptions | None = None
        ) -> tf.distribute.DistributedDataset:
            def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
                return distributed_dataset.without_autotuning(dataset_fn(context))

            return super().distribute_datasets_from_function(make, options)

    return functools.update_wrapper(Strategy, getattr(tf.distribute, name), updated=())


def _resolver(cluster: Cluster, log_once: Callable[[str], None]) -> type:
    """Returns the class of resolvers that the script creates or gets from its strategy."""

    class ClusterResolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
        def __init__(self, *args: Any, **keywords: Any):
            """Resolves nothing, because the workers are connected."""
            hosts = tf.train.ClusterSpec({"worker": [worker["host"] for worker in cluster.roster.workers]})
            gpus = cluster.num_replicas // cluster.num_workers if cluster.device_type == "GPU" else 0
            super().__init__(hosts, task_type="worker", num_accelerators={"GPU": gpus}, rpc_layer="grpc")

        @property
        def task_id(self) -> int:
            if cluster.num_workers > 1:
                log_once(
                    "task_id of the script's cluster resolver is 0 on all workers: each runs the script as the chief, "
                    "and only one prints and writes. Do not shard data by task_id: use the InputContext that "
                    "strategy.distribute_datasets_from_function passes to its function, or "
                    "experimental_distribute_dataset."
                )
            return 0

        def get_task_info(self) -> tuple[str, int]:
            return self.task_type, self.task_id

    return ClusterResolver


def global_batches(data: Any) -> Any:
    """Returns the dataset that `strategy.experimental_distribute_dataset` has distributed; other data unchanged.

    Raises:
        ValueError: `data` comes from `distribute_datasets_from_function`: it has no global batches.
    """
    if isinstance(data, tf.distribute.DistributedDataset):
        if data not in _datasets:
            raise ValueError(
                "fit, evaluate and predict need the global batches, which a dataset of "
                "distribute_datasets_from_function does not have: pass a tf.data.Dataset of global batches."
            )
        return _datasets[data]
    return data
