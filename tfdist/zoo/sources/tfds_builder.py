"""Finds the prepared files of a TensorFlow Datasets dataset, or downloads and prepares them."""

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfdist.zoo.sources.files import from_disk

# Seconds in which a server must answer before a download, and seconds for the look-up of its name as well.
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 10.0


def open_builder(name: str, data_dir: str | None, *, download: bool) -> Any:
    """Returns the tfds builder of a prepared dataset: of `data_dir`, or None: of the directory of tfds.

    With `download`, it is downloaded and prepared as ArrayRecord files if it is not found. Raises FileNotFoundError if
    it is not found, or could not be downloaded, and ValueError if tfds has no such dataset, version or configuration.
    """
    builder = _builder(name, data_dir)
    if _is_prepared(builder):
        return builder
    if not download:
        raise FileNotFoundError(_not_found_message(builder, name))
    return _download(builder, name, data_dir)


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


def _is_prepared(builder: Any) -> bool:
    return (builder.data_path / "dataset_info.json").exists()


def _prepare_command(name: str, data_dir: str, download_dir: str | None = None) -> str:
    downloads = f", download_dir={download_dir!r}" if download_dir else ""
    return (
        f'python -c "import tensorflow_datasets as tfds; tfds.builder({name!r}, data_dir={data_dir!r})'
        f".download_and_prepare(file_format='array_record'{downloads})\""
    )


def _not_found_message(builder: Any, name: str) -> str:
    return (
        f"tfds dataset {name!r} not found in {os.fspath(builder.data_path)!r}. "
        "On a machine with internet access, run `python -m tfdist prepare --config=...` with the flags of this run, or "
        "without a config:\n"
        f"  {_prepare_command(name, os.fspath(builder.data_dir_root))}"
    )


def _download(builder: Any, name: str, data_dir: str | None) -> Any:
    reason = unreachable(builder.url_infos or ())
    if reason:
        raise FileNotFoundError(
            f"tfds dataset {name!r} could not be downloaded: {reason}. Run the same command on a machine with internet "
            "access, such as a login node."
        )
    root = Path(builder.data_dir_root)
    new = [path for path in (root, *root.parents) if not path.exists()]
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:
        # Any error of tfds. Another worker may have prepared the dataset in the meantime.
        if not _is_prepared(_builder(name, data_dir)):
            _remove_empty_folders([root / "downloads", root / builder.name], new)
            raise FileNotFoundError(
                f"tfds dataset {name!r} could not be downloaded: {from_disk.reason(error)}"
            ) from error
    return _builder(name, data_dir)


def unreachable(urls: Iterable[str]) -> str:
    """Returns why one of the servers of `urls` does not answer, after a few seconds; "" if all do.

    tfds itself tries again and again, for minutes.
    """
    import requests

    first_of_host = {url.split("/")[2]: url for url in reversed([*urls]) if url.startswith(("http:", "https:"))}
    problems: list[str] = []

    def request_all() -> None:
        for host, url in first_of_host.items():
            try:
                requests.head(url, timeout=_CONNECT_SECONDS)  # Any answer will do.
            except requests.RequestException as error:
                problems.append(f"{host} does not answer ({type(error).__name__})")
                return

    thread = threading.Thread(target=request_all, daemon=True)  # The look-up of a name has no time limit of its own.
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if thread.is_alive():
        return f"no answer from {', '.join(first_of_host)} within {_ANSWER_SECONDS:g} s"
    return "".join(problems)


def _remove_empty_folders(trees: Iterable[Path], others: Iterable[Path]) -> None:
    """Removes the empty directories in `trees`, and then `others` if they are empty."""
    below = [path for tree in trees for path in (*sorted(tree.rglob("*"), reverse=True), tree)]
    for path in [*below, *others]:
        with contextlib.suppress(OSError):  # Not empty, or no directory.
            path.rmdir()


def too_large_message(builder: Any, name: str, num_bytes: int, memory_limit_mb: float) -> str:
    """Returns the error for a dataset prepared as TFRecord files that exceeds `memory_limit_mb`, and what to do."""
    import tensorflow_datasets

    problem = (
        f"tfds dataset {name!r} needs {num_bytes / 2**20:.1f} MiB, memory_limit_mb is {memory_limit_mb:g}, and it is "
        f"prepared in {os.fspath(builder.data_path)!r} as tfrecord, which has no random access. Increase "
        "memory_limit_mb, or prepare "
    )
    if isinstance(builder, tensorflow_datasets.core.read_only_builder.ReadOnlyBuilder):
        return problem + "it again with the code that prepared it and file_format='array_record'."
    root = os.fspath(builder.data_dir_root)
    other = os.path.join(root, "array_record")
    command = _prepare_command(name, other, os.path.join(root, "downloads"))
    return f"{problem}it as ArrayRecord files with this command and set data_dir={other!r}:\n  {command}"
