"""What programs read of a run: the small files of its workdir. The chief alone writes. Imports no TensorFlow.

`config.json` and `environment.json` are replaced whole. `metrics.jsonl` and TensorBoard's event file grow by whole
records: after a kill at any moment, or on a full disk, each still consists of whole records, or of whole records and
a torn last one that the next start removes.
"""

import contextlib
import dataclasses
import glob
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
_BUCKETS = 30
# Distributions whose versions decide what a run computes.
DISTRIBUTIONS = ("tfdist", "tensorflow", "keras", "numpy", "tensorflow-datasets", "ml-collections", "tensorboard")


def make_workdir(workdir: str | os.PathLike[str]) -> None:
    """Creates `workdir` where it is missing, and proves that files can be written in it.

    Raises:
        OSError: it cannot be created or written; the message names it.
    """
    try:
        os.makedirs(workdir, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        raise type(error)(
            f"The workdir {os.path.abspath(workdir)!r} cannot be written: {error.strerror}. "
            "Free or unlock it, or give another one with --workdir."
        ) from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` so that a crash at any moment leaves either the old file or the new one, whole.

    What JSON does not know is written as its repr, NaN and the infinities as null.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(path, (json.dumps(finite(value), indent=2, allow_nan=False, default=repr) + "\n").encode())


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Puts `data` on the disk beside `path`, then renames it over `path`."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def plain(config: Any) -> Any:
    """Returns a config, a dataclass or a dict, as what reading it back from JSON gives: tuples become lists.

    Compare with this what `read_config` returns.
    """
    if dataclasses.is_dataclass(config):
        config = dataclasses.asdict(config)
    return json.loads(json.dumps(config, default=repr))


def write_config(workdir: str | os.PathLike[str], config: Any) -> None:
    """Writes workdir/config.json from a dataclass or a dict."""
    write_json(os.path.join(workdir, CONFIG), plain(config))


def read_config(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns what `write_config` wrote, or None where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = os.path.join(workdir, CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, or remove it to start with this config.") from None


def write_environment(workdir: str | os.PathLike[str], facts: dict[str, Any]) -> None:
    """Writes workdir/environment.json: versions, host, command line, git commit, time, and the caller's `facts`."""
    versions = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    described = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [sys.executable, *sys.orig_argv[1:]],
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "git": git_state("."),
    }
    write_json(os.path.join(workdir, ENVIRONMENT), described | facts)


def git_state(directory: str) -> dict[str, Any] | None:
    """Returns the commit checked out in `directory` and whether tracked files differ from it; None outside git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", directory, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def finite(value: Any) -> Any:
    """Returns `value` with NaN and the infinities as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(slots=True)
class GrowingFile:
    """A file that grows by whole records."""

    path: str
    descriptor: int
    size: int

    def append(self, record: bytes) -> None:
        """Appends all of `record` or none of it.

        Raises:
            OSError: it does not fit, or the file is gone.
        """
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(record)

    def close(self) -> None:
        """Closes the file; what was appended is already with the operating system."""
        os.close(self.descriptor)


def open_growing(path: str) -> GrowingFile:
    """Opens `path` at its end, and creates it where it is missing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    return GrowingFile(path, descriptor, os.fstat(descriptor).st_size)


def json_line(record: dict[str, Any]) -> bytes:
    """Returns one line of metrics.jsonl; NaN and the infinities become null."""
    return (json.dumps(finite(record), allow_nan=False) + "\n").encode()


def trim_metrics(path: str, last_step: int | None, last_evaluated: int | None = None) -> int:
    """Removes from a metrics.jsonl the lines of steps after `last_step` (None: none), and what is no whole line.

    A run that was killed after its last save has reported steps which the resumed run reports again. Evaluations are
    removed after `last_evaluated` (None: `last_step`), which is smaller where one is still to be made at `last_step`.

    Returns:
        How many whole lines were removed.
    """
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    kept, removed = [], 0
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not line.endswith(b"\n") or not isinstance(record, dict):
            continue
        last = last_evaluated if record.get("kind") == "evaluation" and last_evaluated is not None else last_step
        if last is not None and record.get("step", 0) > last:
            removed += 1
        else:
            kept.append(line)
    if len(kept) < len(lines):
        replace_file(path, b"".join(kept))
    return removed


def open_events(directory: str, last_step: int | None) -> GrowingFile:
    """Starts an event file for TensorBoard, which then forgets what older ones say of steps after `last_step`.

    TensorBoard's readers in Python forget it at once, its fast one (the default) a tag when it comes by again. The
    records are framed by `tensorboard` itself: no operation of TensorFlow runs, and a full disk shows at once.
    """
    from tensorboard.compat.proto import event_pb2

    os.makedirs(directory, exist_ok=True)
    moments = [re.search(r"tfevents\.(\d+)", name) for name in glob.glob(f"{glob.escape(directory)}/*tfevents.*")]
    # TensorBoard reads the files in the order of their names, however quickly one start follows another.
    moment = max([int(time.time()), *(int(match[1]) + 1 for match in moments if match)])
    file = open_growing(os.path.join(directory, f"events.out.tfevents.{moment}.{socket.gethostname()}.{os.getpid()}"))
    file.append(_framed(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")))
    if last_step is not None:
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        file.append(_framed(event_pb2.Event(wall_time=time.time(), step=last_step + 1, session_log=restart)))
    return file


def scalars_record(step: int, scalars: dict[str, float]) -> bytes:
    """Returns TensorBoard's record of `scalars`, tag -> value, at `step`."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    # A simple_value, because readers forget only those after a restart, not the tensors that tf.summary writes.
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    return _framed(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))


def graph_record(graph_def: bytes) -> bytes:
    """Returns TensorBoard's record of a graph, a serialised GraphDef."""
    from tensorboard.compat.proto import event_pb2

    return _framed(event_pb2.Event(wall_time=time.time(), graph_def=graph_def))


def histograms_record(step: int, arrays: Mapping[str, Any]) -> bytes:
    """Returns TensorBoard's record of a histogram of each of `arrays`, NumPy arrays of floats by tag, at `step`.

    Values that are not finite are left out, and so are arrays that have no others.
    """
    import numpy as np
    from tensorboard.compat.proto import event_pb2, histogram_pb2, summary_pb2

    values = []
    for tag, array in arrays.items():
        flat = np.asarray(array, np.float64).ravel()
        flat = flat[np.isfinite(flat)]
        if flat.size:
            counts, edges = np.histogram(flat, bins=_BUCKETS)
            histogram = histogram_pb2.HistogramProto(
                min=flat.min(), max=flat.max(), num=flat.size, sum=flat.sum(), sum_squares=(flat**2).sum()
            )
            # TensorBoard takes a bucket to begin where the one before ends, the first at its own limit.
            histogram.bucket_limit.extend(edges)
            histogram.bucket.extend([0, *counts])
            values.append(summary_pb2.Summary.Value(tag=tag, histo=histogram))
    return _framed(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))


def _framed(event: Any) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event.SerializeToString())
    return framed.getvalue()
