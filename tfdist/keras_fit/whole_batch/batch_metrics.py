"""Metrics that are no sums over examples: every replica updates them on the whole batch, so that all have one value."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.keras_fit.whole_batch import metric_state, shard_losses
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.per_example import is_per_example


def metrics_of(model: keras.Model) -> list[keras.Metric]:
    """Returns the metrics of a built model, those of `compile` one by one, and those in its attributes."""
    own = [value for value in vars(model).values() if isinstance(value, keras.Metric)]
    return [metric for one in (*model.metrics, *own) for metric in getattr(one, "metrics", None) or [one]]


@contextlib.contextmanager
def compute_on_whole_batch(cluster: Cluster, metrics: Sequence[keras.Metric]) -> Iterator[None]:
    """Gathers the arguments of those of `metrics` whose state is no sum over examples; restores their methods."""
    with contextlib.ExitStack() as stack:
        for metric in {id(metric): metric for metric in metrics}.values():
            if cluster.num_replicas == 1 or is_per_example(metric):
                continue
            for variable in metric.variables:
                metric_state.make_whole(variable)
            stack.enter_context(patch(metric, "update_state", _update))
        yield


def _update(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    rows = rows_lib.rows_now()
    if rows is None:
        return original(*args, **keywords)
    args, keywords = rows.gather_all((list(args), keywords))
    with shard_losses.mode(shard=None), rows_lib.current(None):
        return original(*args, **keywords)
