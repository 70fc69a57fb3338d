"""`record`: what a script of the field trial has found, for `tests.scripts.field` to compare."""

import json
import os

import numpy as np


def record(**found):
    """Adds to what this process has found; not by `open`, which drops the writes of other workers."""
    path = os.environ.get("FIELD_OUT")
    if path is None:
        print("found", ", ".join(found))
        return
    file = os.open(f"{path}-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps(plain(found)) + "\n").encode())
    os.close(file)


def plain(value):
    """Values of NumPy, TensorFlow and Keras as those of JSON."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_tensor"):
        value = value.to_tensor()
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return [one.decode() if isinstance(one, bytes) else str(one) for one in array.reshape(-1)]
    return np.asarray(array, np.float64).tolist() if array.dtype.kind not in "biu" else array.tolist()
