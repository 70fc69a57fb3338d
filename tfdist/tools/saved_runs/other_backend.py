"""Loads a .keras file with another backend of Keras, in a process of its own: started by file, without tfdist.

    python other_backend.py jax|torch MODEL.keras INPUTS.npz [OUT]

INPUTS.npz has the inputs of a batch, in order, and "output", their outputs: the largest difference is printed. OUT is
written as a serialized `jax.export.Exported` of a function of the inputs, for batches of any size.
"""

import os
import sys

import numpy as np


def main(backend: str, model_path: str, inputs_path: str, out: str = "") -> None:
    """Prints the largest difference of the outputs, and writes OUT if it is given."""
    os.environ["KERAS_BACKEND"] = backend
    import keras

    model = keras.models.load_model(model_path, compile=False)
    with np.load(inputs_path) as file:
        inputs, expected = [file[name] for name in file.files if name != "output"], file["output"]
    found = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
    if out:
        found = write_jax(model, inputs, out)
    print(float(np.abs(keras.ops.convert_to_numpy(found).astype(np.float64) - expected).max()))


def write_jax(model: object, inputs: list[np.ndarray], out: str) -> object:
    """Writes the model as StableHLO with its weights, reads it again, and returns its outputs for `inputs`."""
    import jax
    from jax import export

    trainable = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]

    def function(*arrays: object) -> object:
        given = arrays[0] if len(arrays) == 1 else list(arrays)
        return model.stateless_call(trainable, others, given, training=False)[0]

    (size,) = export.symbolic_shape("n")
    shapes = [jax.ShapeDtypeStruct((size, *array.shape[1:]), array.dtype) for array in inputs]
    content = export.export(jax.jit(function), platforms=("cpu", "cuda", "rocm", "tpu"))(*shapes).serialize()
    with open(out, "wb") as file:
        file.write(content)
    with open(out, "rb") as file:
        return export.deserialize(bytearray(file.read())).call(*inputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
