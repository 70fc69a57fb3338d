"""What importing tfdist and `tfdist.connect` say of Keras' backend."""

import subprocess

import pytest
from launching import python
from parameters import slow


@pytest.mark.parametrize(
    ("code", "printed", "error"),
    [
        ("import os, tfdist; print(os.environ['KERAS_BACKEND'])", "tensorflow", ""),
        slow("import keras, tfdist; print('later'); tfdist.connect()", "later", "Received: 'numpy'"),
    ],
)
def test_keras_has_the_backend_tensorflow_whatever_the_environment_says(code, printed, error):
    if error:
        for module in ("scipy", "jax"):
            pytest.importorskip(module, reason=f"pip install {module}, which Keras' backend numpy needs")
    done = python("-c", code, code=None, start=subprocess.run, KERAS_BACKEND="numpy")
    assert done.stdout.strip() == printed and error in done.stderr and bool(done.stderr) == bool(error), done
