"""Writes a Keras model in the formats of other libraries, and loads each file there to compare the outputs."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Rows of the batch whose outputs are compared.
_ROWS = 4
# Stands for dimensions of an input that the model leaves open.
_OPEN_SIZE = 8


def example_inputs(model: keras.Model) -> list[np.ndarray]:
    """Returns a batch for each input of the model: floats from 0 to 1, and 0 or 1 for integers."""
    random, arrays = np.random.RandomState(0), []
    for spec in model.inputs:
        shape = [_ROWS, *(_OPEN_SIZE if size is None else size for size in spec.shape[1:])]
        whole = "int" in str(spec.dtype) or str(spec.dtype) == "bool"
        values = random.randint(0, 2, shape) if whole else random.uniform(0, 1, shape)
        arrays.append(values.astype(str(spec.dtype)))
    return arrays


def outputs_of(model: keras.Model, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the outputs of a model with one output, float64 [n, ...]; raises ValueError if it has several outputs."""
    found = model(inputs[0] if len(inputs) == 1 else list(inputs), training=False)
    if not tf.is_tensor(found):
        raise ValueError(f"Models with several outputs cannot be compared. Received: {type(found).__name__}")
    return found.numpy().astype(np.float64)


def in_float32(model: keras.Model) -> keras.Model:
    """Returns the model computing in float32: itself, or for mixed precision a copy with the same weights."""
    if model.dtype_policy.compute_dtype == "float32":
        return model
    text = json.dumps(keras.saving.serialize_keras_object(model))
    for name in ("mixed_bfloat16", "mixed_float16"):
        text = text.replace(f'"{name}"', '"float32"')
    copy = keras.saving.deserialize_keras_object(json.loads(text))
    copy.set_weights(model.get_weights())
    return copy


def write_savedmodel(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Writes a SavedModel with the endpoint "serve"; returns its outputs, by TensorFlow alone."""
    model.export(path, format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(str(path))  # Its variables live as long as this name.
    tensors = [tf.constant(array) for array in inputs]
    return loaded.serve(tensors[0] if len(tensors) == 1 else tensors).numpy()


def write_onnx(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Writes an ONNX file; returns its outputs by ONNX Runtime, or None without it."""
    need("onnx", "tf2onnx")
    model.export(path, format="onnx", verbose=False)
    if not is_installed("onnxruntime"):
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def write_tflite(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Writes a TensorFlow Lite (LiteRT) file; returns its outputs by LiteRT's interpreter, else by TensorFlow's."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, format="tf_saved_model", verbose=False)
        path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(folder).convert())
    if is_installed("ai_edge_litert"):
        from ai_edge_litert.interpreter import Interpreter
    else:
        Interpreter = tf.lite.Interpreter
    with warnings.catch_warnings():  # TensorFlow's interpreter says that it moves to ai_edge_litert.
        warnings.simplefilter("ignore")
        interpreter = Interpreter(str(path))
    given = sorted(interpreter.get_input_details(), key=lambda detail: detail["name"])
    # Named "serving_default_NAME:0".
    found = {detail["name"].removeprefix("serving_default_").partition(":")[0]: detail for detail in given}
    names = [each.name for each in model.inputs]
    details = [found[name] for name in names] if found.keys() == {*names} else given
    for detail, array in zip(details, inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def write_safetensors(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Writes the weights by their paths; returns the outputs of a model whose weights were read from the file."""
    need("safetensors")
    from safetensors import numpy as safetensors

    arrays = {variable.path: np.ascontiguousarray(keras.ops.convert_to_numpy(variable)) for variable in model.weights}
    if len(arrays) < len(model.weights):
        raise ValueError("Two weights of the model have the same path: give layers of one level different names.")
    safetensors.save_file(arrays, path, {"format": "keras", "keras": keras.__version__})
    copy = keras.models.clone_model(model)
    read = safetensors.load_file(path)
    copy.set_weights([read[variable.path] for variable in model.weights])
    return outputs_of(copy, inputs)


def write_keras(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Writes a .keras file; returns its outputs by Keras."""
    model.save(path)
    return outputs_of(keras.models.load_model(path, compile=False), inputs)


def write_jax(model: keras.Model, path: Path, inputs: Sequence[np.ndarray]) -> float:
    """Writes a serialized `jax.export.Exported`; returns the largest difference of its outputs by JAX."""
    need("jax")
    return by_other_backend("jax", model, inputs, path)


def by_other_backend(backend: str, model: keras.Model, inputs: Sequence[np.ndarray], out: Path | None = None) -> float:
    """Returns the largest difference of the outputs of `model` with another backend of Keras, "jax" or "torch".

    With `out`, the file of `write_jax` is written. Raises ValueError if Keras cannot run this model so.
    """
    script = Path(__file__).with_name("other_backend.py")
    with tempfile.TemporaryDirectory() as folder:
        kept, batch = Path(folder, "model.keras"), Path(folder, "inputs.npz")
        model.save(kept)
        named = {f"input_{number}": array for number, array in enumerate(inputs)}
        np.savez(batch, **named, output=outputs_of(model, inputs))
        words = [sys.executable, str(script), backend, str(kept), str(batch), *([str(out)] if out else [])]
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1][:400]
        raise ValueError(f"Keras cannot run this model with the backend {backend}: {why}")
    return float(done.stdout.split()[-1])


def is_installed(name: str) -> bool:
    """Returns whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def need(*names: str) -> None:
    """Raises a ValueError that says what to install if a package is missing."""
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise ValueError(f"--to needs {' and '.join(missing)}: pip install 'tfdist[export]', or {' '.join(missing)}")


# Name -> (suffix, function(model, path, inputs) -> outputs in the other library, their largest difference, or None).
FORMATS: dict[str, tuple[str, Callable[..., Any]]] = {
    "savedmodel": ("", write_savedmodel),
    "onnx": (".onnx", write_onnx),
    "tflite": (".tflite", write_tflite),
    "safetensors": (".safetensors", write_safetensors),
    "jax": (".jax", write_jax),
    "keras": (".keras", write_keras),
}
