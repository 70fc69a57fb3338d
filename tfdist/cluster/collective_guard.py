"""Code that one worker runs alone, first, or for all: collectives in it are rejected, since they would wait forever.

`Outcome`, `announce` and `result`: what the chief returned or raised, on every worker.
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

from tfdist.cluster.liveness import peer_loss
from tfdist.config import patching, user_code

# (what runs on this worker only, advice to the user), outermost first.
_running: list[tuple[str, str]] = []


@contextlib.contextmanager
def on_one_worker(what: str, advice: str) -> Iterator[None]:
    """Makes `check` raise inside the context: `what` runs on this worker only."""
    _running.append((what, advice))
    try:
        yield
    finally:
        _running.pop()


def on_this_worker_only() -> bool:
    """Returns True inside `on_one_worker`."""
    return bool(_running)


def check(purpose: str) -> None:
    """Checks that all workers can take part in `purpose`; called before each collective.

    Raises:
        RuntimeError: called inside `on_one_worker`.
    """
    if _running:
        what, advice = _running[-1]
        raise RuntimeError(f"{what} runs on one worker only, but {purpose} requires all workers: {advice}.")


@contextlib.contextmanager
def chief_first(cluster: Any) -> Iterator[None]:
    """See `Cluster.chief_first`."""
    if cluster.num_workers == 1:
        yield
        return
    if not cluster.is_chief:
        end = json.loads(cluster.broadcast_bytes(b""))
        if "exit_code" in end:
            raise SystemExit(end["exit_code"])
        if "error" in end:
            raise peer_loss.ChiefFailedError(
                f"worker 0, the chief, failed in a block of cluster.chief_first: {end['error']}"
            )
    only_here = on_one_worker("a block of cluster.chief_first", "call it outside of the block")
    try:
        with cluster.paused(), only_here, tf.variable_creator_scope(_reject_replicated):
            yield
    except (Exception, SystemExit) as error:
        if cluster.is_chief:
            cluster.broadcast_bytes(json.dumps(_describe(error)).encode())
        raise
    if cluster.is_chief:
        cluster.broadcast_bytes(b"{}")


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit):
        return {"exit_code": error.code if isinstance(error.code, int | None) else 1}
    return {"error": f"{type(error).__name__}: {user_code.message(error)}"}


def _reject_replicated(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
    """A variable creator: on several workers, the initial value of a replicated variable is sent to all of them."""
    if tf.distribute.has_strategy():
        raise RuntimeError(
            "A model cannot be built in a block of cluster.chief_first, because all workers must create its variables "
            "together: download and save files in the block, and build the model after it."
        )
    return next_creator(**keywords)


@contextlib.contextmanager
def local(model: keras.Model) -> Iterator[None]:
    """Lets Keras' own `model.predict` run on this worker, with all data; methods with collectives raise."""
    rejected = ("fit", "evaluate", "train_on_batch", "test_on_batch")
    with patching.restored([model], ["_distribute_strategy", *rejected]):
        # None: TensorFlow's current strategy, the default one outside of scopes.
        patching.put(model, "_distribute_strategy", None)
        for name in rejected:
            patching.put(model, name, lambda *args, name=name, **keywords: check(f"model.{name}"))
        yield


@contextlib.contextmanager
def alone(model: keras.Model) -> Iterator[None]:
    """See `Cluster.alone`."""
    with on_one_worker("a block of cluster.alone", "call it on all workers, outside of the block"), local(model):
        yield


def reject_keras_predict(strategy: tf.distribute.Strategy) -> None:
    """Makes Keras' own `predict` raise RuntimeError for models that were created in the scope of `strategy`.

    On one worker it would wait for the others forever, and on all it would return a part of the outputs on each.
    """
    original = keras.Model.predict

    @functools.wraps(original)
    def predict(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        if self.distribute_strategy is strategy:
            raise RuntimeError(
                "model.predict is Keras' own, and this model is on several workers. On all workers, call "
                "tfdist.predict(cluster, model, x); on one of them, `with cluster.alone(model): model.predict(x)`."
            )
        return original(self, *args, **keywords)

    patching.put(keras.Model, "predict", predict)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a function returned, or what it raised."""

    returned: Any = None
    raised: Exception | None = None

    def value(self) -> Any:
        """Returns or raises it."""
        if self.raised is not None:
            raise self.raised
        return self.returned


def tried(function: Callable[[], Any]) -> Outcome:
    """Calls `function`."""
    try:
        return Outcome(returned=function())
    except Exception as error:
        return Outcome(raised=error)


def announce(cluster: Any, outcome: Outcome) -> None:
    """Sends an outcome to the other workers, which call `result`. Called on the chief."""
    error = outcome.raised
    if error is None:
        try:
            content = json.dumps({"returned": outcome.returned})
        except TypeError:
            content = "{}"
    else:
        arguments = [*error.args, *([error.filename] if isinstance(error, OSError) and error.filename else [])]
        kind = type(error)
        content = json.dumps({"raised": [kind.__module__, kind.__qualname__, arguments, str(error)]}, default=str)
    cluster.broadcast_bytes(content.encode())


def result(cluster: Any) -> Any:
    """Returns what the function on the chief returned, None if JSON cannot hold it. Called on the other workers.

    Raises:
        Exception: of the same class and with the same text, if the class is known here and takes a text.
        ChiefFailedError: otherwise.
    """
    found = json.loads(cluster.broadcast_bytes(b""))
    if "raised" not in found:
        return found.get("returned")
    module, name, arguments, text = found["raised"]
    kind = getattr(sys.modules.get(module), name, None)
    error: Exception = peer_loss.ChiefFailedError(f"worker 0, the chief, failed: {name}: {text}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # Its constructor takes other arguments.
            error = kind(*arguments)
    raise error
