"""TensorBoard event files, written record by record. Imports no TensorFlow.

Training and evaluation are two runs, as TensorBoard calls a directory of event files, with the same tags: their curves
share a chart. The tag `by_step/loss` is over optimizer steps, and `by_epoch/loss` over epochs.

Not tensorboard's own EventFileWriter: its thread buffers records and raises the error of a full disk at a later call,
or at exit. Here each record is written or not when it is reported.
"""

import glob
import io
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from tfdist.report import files
from tfdist.report.files import AppendOnlyFile

TENSORBOARD = "tensorboard"
_HPARAMS = "events.out.tfevents.0.hparams"
# What the first event of a file says.
_VERSION = "brain.Event:2"
# The runs.
TRAIN, EVALUATION = "train", "evaluation"
_BY_STEP, _BY_EPOCH, _SPEED = "by_step/", "by_epoch/", "speed/"
# Bytes of a record before and after its event: the event's length with a checksum, and the event's checksum.
_BEFORE, _AFTER = 12, 4


def open_event_files(
    workdir: str,
    last_step: int | None,
    last_evaluated: int | None,
    *,
    evaluates: bool,
    warn: Callable[[str], None],
) -> dict[str, AppendOnlyFile]:
    """Opens the event files of a start, by run; that of evaluations only if it `evaluates`.

    Kept are records until `last_step`, and evaluations until `last_evaluated` (None: all, and `last_step`). `warn` is
    called with a line for each file that cannot be read or written: training does not need them.
    """
    last = {TRAIN: last_step}
    if evaluates:
        last[EVALUATION] = last_step if last_evaluated is None else last_evaluated
    opened = {}
    for run, step in last.items():
        try:
            opened[run] = open_event_file(os.path.join(workdir, TENSORBOARD, run), step, warn)
        except OSError as error:
            warn(f"WARNING: no records for TensorBoard: {error.filename} cannot be written ({error.strerror}).")
    return opened


def open_event_file(directory: str, last_step: int | None, warn: Callable[[str], None]) -> AppendOnlyFile:
    """Opens a new event file in `directory`, whose other files keep only the records up to `last_step`.

    They are looked at from the newest one, up to the one that was opened when the run started after `last_step` or
    before: the older ones have been trimmed then. A TensorBoard that is already open discards the data of later steps
    as well. None as `last_step` discards nothing. `warn` is called with a line for each of the other files that cannot
    be read or replaced. Raises OSError if the file cannot be written.
    """
    os.makedirs(directory, exist_ok=True)
    paths = sorted(glob.glob(f"{glob.escape(directory)}/*tfevents.*"), key=_timestamp, reverse=True)
    for path in paths if last_step is not None else ():
        try:
            if trim_events(path, last_step):
                break
        except (OSError, ValueError) as error:
            warn(f"WARNING: TensorBoard may show steps twice: {error}")
    # TensorBoard reads files in the order of their names: the timestamp must be newer than that of all others.
    timestamp = max(int(time.time()), *(_timestamp(path) + 1 for path in (*paths, "")))
    file = files.open_append_only(
        os.path.join(directory, f"events.out.tfevents.{timestamp}.{socket.gethostname()}.{os.getpid()}")
    )
    file.append(event_record(file_version=_VERSION))
    if last_step is not None:
        file.append(event_record(step=last_step + 1, session_log={"status": "START"}))
    return file


def _timestamp(path: str) -> int:
    match = re.search(r"tfevents\.(\d+)", path)
    return int(match[1]) if match else 0


def trim_events(path: str, last_step: int) -> bool:
    """Removes the records after `last_step`, and an incomplete one at the end, from an event file.

    A resumed run writes them again. If `last_step` is 0, the run starts again, and the file is removed. Returns whether
    the file was opened when the run started after `last_step` or before. Raises OSError or ValueError.
    """
    if last_step == 0:
        os.unlink(path)
        return False
    data, kept, keep, started = files.read_file(path) or b"", [], True, False
    for record, event in _records(data):
        started = started or (event.HasField("session_log") and event.step - 1 <= last_step)
        # A record over epochs follows the one over steps of the same report.
        if not any(value.tag.startswith(_BY_EPOCH) for value in event.summary.value):
            keep = event.step <= last_step
        if keep:
            kept.append(record)
    if sum(map(len, kept)) < len(data):
        files.replace_file(path, b"".join(kept))
    return started


def scalars_records(
    step: int,
    epoch: int | None,
    values: Mapping[str, float],
    rates: Mapping[str, float] = MappingProxyType({}),
    speeds: Mapping[str, float] = MappingProxyType({}),
) -> bytes:
    """Returns the records of a report; all values by name.

    The `values` are shown over steps, and over epochs if an `epoch` ended; `rates` and, apart from the others, `speeds`
    over steps.
    """
    tags = {f"{_BY_STEP}{name}": value for name, value in (*values.items(), *rates.items())}
    record = _scalars_record(step, tags | {f"{_SPEED}{name}": value for name, value in speeds.items()})
    if epoch is None:
        return record
    return record + _scalars_record(epoch, {f"{_BY_EPOCH}{name}": value for name, value in values.items()})


def _scalars_record(step: int, scalars: dict[str, float]) -> bytes:
    # Not a tensor as tf.summary writes it: readers discard only simple_value after a restart.
    values = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
    return event_record(step=step, summary={"value": values})


def text_record(step: int, tag: str, text: str) -> bytes:
    """Returns the record of `text`, in Markdown, at `step`."""
    from tensorboard.plugins.text import summary_v2

    return event_record(step=step, summary=summary_v2.text_pb(tag, text))


def write_hparams(directory: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Writes the values of fields, by dotted name, for TensorBoard's HParams; raises OSError.

    Its metrics are the last scalars of the runs in directories of `directory`. Other values than numbers, texts and
    booleans are written as texts, None not at all.
    """
    from tensorboard.plugins.hparams import summary_v2

    plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}
    known = {name: value for name, value in plain.items() if values[name] is not None}
    content = event_record(file_version=_VERSION) + event_record(summary=summary_v2.hparams_pb(known))
    files.replace_file(os.path.join(directory, _HPARAMS), content)


def event_record(**fields: Any) -> bytes:
    """Returns the record of an event of now; messages within it may be dicts."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())
    return framed.getvalue()


def _records(data: bytes) -> Iterator[tuple[memoryview, Any]]:
    """Yields each record of an event file with its event, up to the first damaged one."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    start, data = 0, memoryview(data)
    while start + _BEFORE <= len(data):
        end = start + _BEFORE + struct.unpack_from("<Q", data, start)[0] + _AFTER
        if end > len(data):
            return
        record = data[start:end]
        try:
            yield record, event_pb2.Event.FromString(bytes(record[_BEFORE:-_AFTER]))
        except DecodeError:
            return
        start = end


class EventRecords:
    """What `reporter.open_report` takes to write event files."""

    open_files = staticmethod(open_event_files)
    scalars = staticmethod(scalars_records)
    text = staticmethod(text_record)
    write_hparams = staticmethod(write_hparams)
