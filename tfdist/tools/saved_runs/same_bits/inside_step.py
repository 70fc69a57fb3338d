"""Makes one training step again, and records what it computes: examples, outputs of layers, gradients, variables."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching
from tfdist.data import autograph, inputs, order
from tfdist.training import execution
from tfdist.training.run import Run
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.layers import model_layers
from tfdist.training.step.updates import tables

# The parts of a step, in the order in which they are computed.
READ, PREPARED, OUTPUTS, GRADIENTS, VARIABLES = "read", "prepared", "outputs", "gradients", "variables"


def hash_array(value: np.ndarray) -> str:
    """Returns a hash of the bytes, shape and type of an array."""
    about = f"{value.dtype} {value.shape}".encode()
    return hashlib.blake2b(about + np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()


def record(run: Run, step: int) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Makes the step after `step` from the present state, which it changes.

    Returns:
        (hashes, arrays). `hashes`: "ids", the examples of the batch, int64 [n], or None; "rate", the learning rate; for
        READ and PREPARED, name -> a hash for each example; for OUTPUTS, layer -> a hash for each of its calls, in the
        order of the layers; for GRADIENTS and VARIABLES, name -> hash. `arrays`: the same by part and name, without
        OUTPUTS.
    """
    ids, read = _examples(run, step)
    arrays = {READ: read, PREPARED: _prepared_batch(run, step), GRADIENTS: {}}
    outputs: dict[str, list[str]] = {}
    with _recording(run, outputs, arrays[GRADIENTS]):
        runner = execution.training_steps(run)
        runner(run.feed.open_training(step, run.total_steps), 1)
    arrays[VARIABLES] = checkpoint_format.snapshot(run.variables)
    calls = {name: sorted(found) for name, found in outputs.items()}
    hashes: dict[str, Any] = {"ids": ids, "rate": optimizer_lib.learning_rate(run.context.optimizer), OUTPUTS: calls}
    for part in (READ, PREPARED):
        hashes[part] = {name: [hash_array(row) for row in rows] for name, rows in arrays[part].items()}
    for part in (GRADIENTS, VARIABLES):
        hashes[part] = {name: hash_array(value) for name, value in arrays[part].items()}
    return hashes, arrays


def _examples(run: Run, step: int) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Returns the examples of the global batch of a step, and what the source has of them; nothing if not known."""
    options = run.config.data
    if options.pipeline != "stream" or options.shards != "batch":
        return None, {}
    source, batch = inputs.open_inputs(run.config).train_source, run.feed.sizes.global_batch
    ids, _ = order.example_ids(
        tf.constant(step, tf.int64),
        tf.range(batch, dtype=tf.int64),
        seed=run.config.seed,
        num_examples=len(source),
        global_batch=batch,
        shuffle=options.shuffle,
    )
    read = next(iter(tf.data.Dataset.from_tensors(ids).map(autograph.convert_read(source))))
    return ids.numpy(), {name: value.numpy() for name, value in read.items() if isinstance(value, tf.Tensor)}


def _prepared_batch(run: Run, step: int) -> dict[str, np.ndarray]:
    """Returns the prepared global batch of a step, in the order of its examples."""
    parts: list[dict[str, np.ndarray]] = []
    for element in run.feed.training(step, step + 1):
        parts.append({name: value.numpy() for name, value in element.items() if isinstance(value, tf.Tensor)})
        if sum(len(next(iter(one.values()))) for one in parts) >= run.feed.sizes.global_batch:
            break
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


@contextlib.contextmanager
def _recording(run: Run, outputs: dict[str, list[str]], gradients: dict[str, np.ndarray]) -> Iterator[None]:
    """While a step is traced, adds ops that note what layers return and the optimizer gets."""
    model, optimizer = run.context.model, run.context.optimizer
    # XLA compiles no calls of Python.
    seen = (
        []
        if getattr(run.context.objective, "xla", False)
        else [one for one in model_layers.of_all_depths(model) if one is not model]
    )
    with patching.restore_after(seen, ["call"]), patching.restore_after([optimizer], ["apply"]):
        for layer in seen:
            patching.put(layer, "call", _noting_outputs(layer.call, layer.path, outputs))
        patching.put(optimizer, "apply", _noting_gradients(optimizer.apply, gradients))
        yield


def _noting_outputs(call: Callable[..., Any], name: str, outputs: dict[str, list[str]]) -> Callable[..., Any]:
    def note(replica: np.ndarray, value: np.ndarray) -> None:
        outputs[name].append(f"{int(replica):05d} {hash_array(value)}")

    def call_and_note(*args: Any, **keywords: Any) -> Any:
        found = call(*args, **keywords)
        outputs.setdefault(name, [])  # In the order in which the layers are traced.
        for value in tf.nest.flatten(found):
            if isinstance(value, tf.Tensor):
                tf.numpy_function(note, [replicas_lib.replica_id(), value], [])
        return found

    return call_and_note


def _noting_gradients(apply: Callable[..., Any], gradients: dict[str, np.ndarray]) -> Callable[..., Any]:
    def call_and_note(grads: Any, variables: Any) -> Any:
        for gradient, variable in zip(grads, variables, strict=True):
            if gradient is not None:

                def note(value: np.ndarray, name: str = variable.path) -> None:
                    gradients[name] = value

                tf.numpy_function(note, [tables.sum_rows(gradient)], [])
        return apply(grads, variables)

    return call_and_note
