"""Finds the prepared files of a TensorFlow Datasets dataset, or downloads and prepares them."""

import os
from typing import Any

from tfdist.zoo.sources.files import file_source


def open_builder(name: str, data_dir: str | None, *, download: bool) -> Any:
    """Returns the tfds builder of a dataset that was prepared in `data_dir`; None: in the directory of tfds.

    With `download`, it is downloaded and prepared as ArrayRecord files if it is not found. Raises FileNotFoundError if
    it is not found, or could not be downloaded, and ValueError if tfds has no such dataset, version or configuration.
    """
    builder = _builder(name, data_dir)
    if (builder.data_path / "dataset_info.json").exists():
        return builder
    if not download:
        raise FileNotFoundError(
            f"tfds dataset {name!r} not found in {os.fspath(builder.data_path)!r}. On a machine with internet access, "
            "run `python -m tfdist prepare --config=...` with the flags of this run."
        )
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # Any error of tfds.
        raise FileNotFoundError(
            f"tfds dataset {name!r} could not be downloaded: {file_source.reason(error)} Run the same command on a "
            "machine with internet access, such as a login node."
        ) from error
    return _builder(name, data_dir)


def _builder(name: str, data_dir: str | None) -> Any:
    import tensorflow_datasets

    try:
        return tensorflow_datasets.builder(name, data_dir=data_dir)
    except tensorflow_datasets.core.DatasetNotFoundError:
        folder = data_dir or tensorflow_datasets.core.constants.DATA_DIR
        raise ValueError(
            f"tfds has no dataset {name!r}, neither in its catalog nor prepared in {os.fspath(folder)!r}. "
            "https://www.tensorflow.org/datasets/catalog lists the names."
        ) from None
    except (AssertionError, ValueError) as error:  # A version or a configuration that does not exist.
        raise ValueError(f"tfds dataset {name!r} cannot be used: {error}") from None
