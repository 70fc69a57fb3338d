"""`ScriptCluster`: the workers of a script, and blocks of code that one worker runs alone, or before the others.

In such a block, a collective raises an error. `send_to_all` gives every worker what the chief returned or raised.
"""

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.control import heartbeat_monitor
from tfdist.config import patching


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCluster(Cluster):
    """The workers of a script, seen from one of them; `tfdist.connect` returns it."""

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """Lets the chief run a `with` block first, and then all other workers at the same time. Collective.

        For downloads, and for files that the chief writes and all workers read. If the chief fails in the block, the
        others skip it and raise an error as `send_to_all` does. In the block, collectives and the creation of models
        raise RuntimeError: the chief would wait for workers that wait for it.
        """
        if self.num_workers == 1:
            yield
            return
        if not self.is_chief:
            send_to_all(self, None, None)
        only_here = cluster_lib.on_one_worker("a block of cluster.chief_first", "call it outside of the block")
        failed = None
        try:
            with self.monitor.pause_timers(), only_here:
                yield
        except (Exception, SystemExit) as error:
            if not self.is_chief:
                raise
            failed = error
        if self.is_chief:
            send_to_all(self, None, failed)

    @contextlib.contextmanager
    def alone(self, model: keras.Model) -> Iterator[None]:
        """Lets this worker alone call Keras' own `model.predict`, in a block that other workers may skip.

        In the block, `fit`, `evaluate`, `train_on_batch` and `test_on_batch` raise RuntimeError: they need all workers.
        """
        with (
            cluster_lib.on_one_worker("a block of cluster.alone", "call it on all workers, outside of the block"),
            predict_locally(model),
        ):
            yield

    def print(self, *values: Any, **keywords: Any) -> None:
        """Prints on the chief only; arguments as for Python's `print`."""
        if self.is_chief:
            print(*values, **keywords)


def for_script(cluster: Cluster) -> ScriptCluster:
    """Returns the same cluster with the additional methods for scripts."""
    return ScriptCluster(**{field.name: getattr(cluster, field.name) for field in dataclasses.fields(cluster)})


@contextlib.contextmanager
def predict_locally(model: keras.Model) -> Iterator[None]:
    """Lets Keras' own `model.predict` run on all data on this worker; methods that need all workers raise."""
    with patching.restore_attributes():
        # None: Keras takes TensorFlow's current strategy, the default one outside of scopes.
        patching.replace_until_end(model, "_distribute_strategy", None)
        for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
            patching.replace_until_end(model, name, functools.partial(_reject, name))
        yield


def _reject(name: str, *args: Any, **keywords: Any) -> None:
    cluster_lib.require_all_workers(f"model.{name}")
    raise RuntimeError(
        f"model.{name} is Keras' own, and this model is on several workers: on all of them, call tfdist.fit or "
        "tfdist.evaluate(cluster, model, ...)."
    )


def reject_keras_methods(strategy: tf.distribute.Strategy) -> None:
    """Makes Keras' own `fit`, `evaluate` and `predict` raise RuntimeError for models made in the scope of `strategy`.

    On one worker they would wait for the others forever; on all workers they fail, or return only some outputs.
    """
    for name in ("fit", "evaluate", "predict"):
        patching.replace_attribute(keras.Model, name, _rejecting(getattr(keras.Model, name), strategy))


def _rejecting(original: Callable[..., Any], strategy: tf.distribute.Strategy) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        if self.distribute_strategy is strategy:
            name = original.__name__
            raise RuntimeError(
                f"model.{name} is Keras' own, and this model is on several workers. On all workers, call tfdist.{name}"
                "(cluster, model, ...); on one of them, `with cluster.alone(model): model.predict(x)`."
            )
        return original(self, *args, **keywords)

    return method


def in_any_scope() -> bool:
    """Returns True in the scope of a strategy, and in functions that it runs."""
    return tf.distribute.has_strategy()


def send_to_all(cluster: Cluster, result: Any, error: Exception | SystemExit | None) -> Any:
    """Returns the chief's `result` on every worker; None on the others if JSON cannot hold it. Collective.

    Args:
        result: what a function returned on the chief; not used on the others.
        error: what the function raised on the chief; None: it raised nothing.

    Raises:
        Exception, SystemExit: on the chief `error`; on the others an error of the same class with the same arguments,
            if that class is imported there and accepts them.
        ChiefFailedError: on the others, otherwise.
    """
    if not cluster.is_chief:
        return _result_of_chief(json.loads(cluster.broadcast_bytes(b"")))
    if error is None:
        try:
            content = json.dumps({"returned": result})
        except TypeError:
            content = "{}"
    else:
        arguments = [*error.args, *([error.filename] if isinstance(error, OSError) and error.filename else [])]
        kind = type(error)
        content = json.dumps({"raised": [kind.__module__, kind.__qualname__, arguments, str(error)]}, default=str)
    cluster.broadcast_bytes(content.encode())
    if error is not None:
        raise error
    return result


def _result_of_chief(found: dict[str, Any]) -> Any:
    if "raised" not in found:
        return found.get("returned")
    module, name, arguments, text = found["raised"]
    kind = getattr(sys.modules.get(module), name, None)
    error: BaseException = heartbeat_monitor.ChiefFailedError(f"worker 0, the chief, failed: {name}: {text}")
    if isinstance(kind, type) and issubclass(kind, Exception | SystemExit):
        with contextlib.suppress(TypeError):  # Its constructor takes other arguments.
            error = kind(*arguments)
    raise error
