"""Checks batches, and describes the output of `config.data.prepare`: for the log, and as words and code for users."""

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.config import specs

# Characters in a line of `usage`.
_WIDTH = 110


def check_batch(batch: Any, name: str, rows: int | None) -> None:
    """Checks what a user's function returned while it was traced, or raises ValueError.

    Args:
        batch: the returned value; must be a dict of tensors [rows, ...].
        name: the function, such as "config.data.prepare".
        rows: the number of examples; None: not known.
    """
    if not isinstance(batch, dict) or not batch:
        raise ValueError(
            f'{name} must return a dict of tensors with one row per example, such as {{"image": ..., "label": ...}}. '
            f"Received: {type(batch).__name__}"
        )
    for key, value in batch.items():
        if not tf.is_tensor(value):
            raise ValueError(
                f"{name} returns {key!r} as {type(value).__name__}, which is the same in every batch: the function "
                "runs once, in graph mode. Return a tensor, from TensorFlow's functions such as tf.gather; Python "
                "code needs tf.numpy_function(..., stateful=False)."
            )
        if None not in (rows, value.shape.rank) and value.shape[:1] not in ([rows], [None]):
            raise ValueError(
                f"{name} returns {key!r} of shape {value.shape} for {rows} examples: row i must be of example i."
            )


def element_spec(dataset: tf.data.Dataset) -> dict[str, tf.TensorSpec]:
    """Returns the shapes and dtypes of a batch of `dataset`.

    Raises:
        ValueError: `config.data.prepare` did not return a dict of tensors whose shapes are known except for the first
            dimension.
    """
    spec = dataset.element_spec
    if not isinstance(spec, dict) or not spec:
        raise ValueError(f"config.data.prepare must return a dict of tensors. Received: {spec}")
    for name, tensor in spec.items():
        if tensor.shape.rank in (None, 0) or None in tensor.shape[1:].as_list():
            raise ValueError(
                f"config.data.prepare returns {name!r} of shape {tensor.shape}: every dimension but the first must be "
                "known, so that examples can be batched. Resize or crop the images, for instance."
            )
    return spec


def describe(prepare: Mapping[str, Any], spec: Mapping[str, tf.TensorSpec]) -> tuple[str, str]:
    """Returns the prepare function of a config with its arguments, and the batches that it returns on one replica."""
    return f"config.data.prepare: {_call(prepare)}", f"returns per replica {_columns(spec)}"


def to_save(source: Any, spec: Mapping[str, tf.TensorSpec]) -> dict[str, Any]:
    """Returns what data.json in the workdir says about the examples, for people and for tools.

    Args:
        source: of the training split. It may have `classes`, the name of each class in the order of the labels, and
            `columns`, a dict that says what each number of an example is.
        spec: shapes and dtypes of a batch on one replica, as `prepare` returns it.

    Returns:
        "examples", the source in words; "classes", a list of names or None; "columns", a dict or None; "prepared",
        {key: {"dtype", "shape"}} of an example as `prepare` returns it.
    """
    classes, columns = getattr(source, "classes", None), getattr(source, "columns", None)
    return {
        "examples": repr(source),
        "classes": None if classes is None else [str(name) for name in classes],
        "columns": None if columns is None else dict(columns),
        "prepared": {key: {"dtype": one.dtype.name, "shape": one.shape.as_list()[1:]} for key, one in spec.items()},
    }


def usage(
    prepare: Mapping[str, Any],
    finish: Mapping[str, Any] | None,
    objective: Mapping[str, Any],
    spec: Mapping[str, tf.TensorSpec],
    meaning: Mapping[str, Any] | None = None,
) -> str:
    """Returns a text about the input that an exported model expects, with the code that prepares it.

    Args:
        prepare: `config.data.prepare`.
        finish: `config.data.finish`.
        objective: `config.objective`, which calls the model; its keyword `inputs` is the key of the model's input.
        spec: shapes and dtypes of a batch on one replica, as `prepare` returns it.
        meaning: what `saved` returns; None: not known.
    """
    parameter = inspect.signature(specs.resolve(objective, field="config.objective")).parameters.get("inputs")
    key = objective.get("inputs", parameter.default) if parameter else None
    known = isinstance(key, str) and key in spec
    first = key if known else next(iter(spec))
    steps = [*_code(prepare, "prepare", "batch, seeds"), *(_code(finish, "finish", "batch") if finish else ())]
    ours = any(line.startswith("from tfdist.") for line in steps)
    call = f'outputs = keras.models.load_model("model.keras")(batch[{key!r}])'
    lines = [
        *(["import tfdist  # First: it hides the lines that TensorFlow writes at its import."] if ours else []),
        "import keras",
        "import tensorflow as tf",
        *(line for line in steps if line.startswith("from ")),
        "",
        f"seeds = tf.zeros([len(batch[{first!r}]), 2], tf.int64)  # Not used in an evaluation.",
        *(line for line in steps if not line.startswith("from ")),
        call if known else f"# {objective['target']} calls the model with it.",
    ]
    prepared = [_call(prepare), *([f"then {_call(finish)}"] if finish else ())]
    return "\n".join(
        [
            "model.keras expects prepared examples. For others its outputs are wrong, without an error.",
            "",
            f"The examples were prepared by {', '.join(prepared)}.",
            f"The function prepare returned {_columns(spec, batch='n')}.",
            *_meaning(meaning or {}),
            "",
            "With `batch`, a dict of tensors as the source of the data returns it:",
            "",
            textwrap.indent("\n".join(lines), "    ", lambda line: bool(line.strip())),
            "",
        ]
    )


def _meaning(meaning: Mapping[str, Any]) -> list[str]:
    """Returns lines with the names of the classes and columns."""
    lines = []
    if classes := meaning.get("classes"):
        lines.append(f"Class numbers: {', '.join(f'{number} {name}' for number, name in enumerate(classes))}.")
    if columns := meaning.get("columns"):
        lines.append(f"Columns of the data: {', '.join(map(str, columns))}. data.json says what each number is.")
    return [line for text in lines for line in ("", *textwrap.wrap(text, _WIDTH))]


def _call(spec: Mapping[str, Any]) -> str:
    return f"{spec['target']}({_arguments(spec)})"


def _arguments(spec: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in spec.items() if name != "target")


def _columns(spec: Mapping[str, tf.TensorSpec], batch: str | None = None) -> str:
    shapes = {name: one.shape.as_list() for name, one in spec.items()}
    if batch is not None:
        shapes = {name: f"[{', '.join(map(str, (batch, *shape[1:])))}]" for name, shape in shapes.items()}
    return ", ".join(f"{name} {one.dtype.name} {shapes[name]}" for name, one in spec.items())


def _code(spec: Mapping[str, Any], name: str, given: str) -> list[str]:
    """Returns the import and the call of a function of a config."""
    module, _, path = str(spec["target"]).partition(":")
    first, _, rest = path.partition(".")
    arguments = _arguments(spec)
    function = f"{name}.{rest}" if rest else name
    return [
        f"from {module} import {first} as {name}",
        f"batch = {function}({given}, training=False{', ' if arguments else ''}{arguments})",
    ]
