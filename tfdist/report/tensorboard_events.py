"""TensorBoard event files: scalars, texts and HParams. Imports no TensorFlow.

Training and evaluation are two runs, as TensorBoard calls a directory of event files, with the same tags: their curves
share a chart. The tag `by_step/loss` is over optimizer steps, and `by_epoch/loss` over epochs.

tensorboard's RecordWriter frames a record, which is appended to its file, or not, when it is reported: no buffer, and
no thread that raises the error of a full disk later. What a killed run left of a record hides no other one: each start
opens a new file. It says from which step on earlier files are void, and readers drop these steps.
"""

import io
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tfdist.report import files
from tfdist.report.files import AppendOnlyFile

TENSORBOARD = "tensorboard"
# The runs.
TRAIN, EVALUATION = "train", "evaluation"


def open_event_files(
    workdir: str,
    last_step: int | None,
    last_evaluated: int | None,
    *,
    evaluates: bool,
    warn: Callable[[str], None],
) -> dict[str, AppendOnlyFile]:
    """Opens the event files of a start, by run; that of evaluations only if it `evaluates`.

    What earlier starts wrote is valid until `last_step`, and evaluations until `last_evaluated` (None: all, and
    `last_step`). `warn` is called with a line for each file that cannot be written: training does not need them.
    """
    last = {TRAIN: last_step}
    if evaluates:
        last[EVALUATION] = last_step if last_evaluated is None else last_evaluated
    opened = {}
    for run, step in last.items():
        try:
            opened[run] = _open_event_file(os.path.join(workdir, TENSORBOARD, run), step)
        except OSError as error:
            path = error.filename or os.path.join(workdir, TENSORBOARD, run)
            warn(f"WARNING: no records for TensorBoard: {path} cannot be written ({error.strerror}).")
    return opened


def _open_event_file(directory: str, last_step: int | None) -> AppendOnlyFile:
    os.makedirs(directory, exist_ok=True)
    # Readers take the files in the order of their names, which begin with the second of the start.
    others = [int(found[1]) for name in os.listdir(directory) if (found := re.search(r"tfevents\.(\d+)", name))]
    second = max([int(time.time()), *(one + 1 for one in others)])
    name = f"events.out.tfevents.{second}.{socket.gethostname()}.{os.getpid()}"
    file = files.open_append_only(os.path.join(directory, name))
    file.append(_record(file_version="brain.Event:2"))
    if last_step is not None:
        file.append(_record(step=last_step + 1, session_log={"status": "START"}))
    if last_step is not None and others:
        # The START voids steps, and not epochs. In this version readers compare the steps of each tag: a record of an
        # epoch voids those of the same and of later epochs.
        file.append(_record(file_version="brain.Event:1"))
    return file


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
    by_step = {f"by_step/{name}": value for name, value in (*values.items(), *rates.items())}
    record = _scalars_record(step, by_step | {f"speed/{name}": value for name, value in speeds.items()})
    if epoch is None:
        return record
    return record + _scalars_record(epoch, {f"by_epoch/{name}": value for name, value in values.items()})


def _scalars_record(step: int, scalars: dict[str, float]) -> bytes:
    # Not a tensor as tf.summary writes it: some readers drop only simple_value after a restart.
    return _record(step=step, summary={"value": [{"tag": tag, "simple_value": one} for tag, one in scalars.items()]})


def text_record(step: int, tag: str, text: str) -> bytes:
    """Returns the record of `text`, in Markdown, at `step`."""
    from tensorboard.plugins.text import summary_v2

    return _record(step=step, summary=summary_v2.text_pb(tag, text))


def write_hparams(directory: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Writes the values of fields, by dotted name, for TensorBoard's HParams; raises OSError.

    Its metrics are the last scalars of the runs in directories of `directory`. Other values than numbers, texts and
    booleans are written as texts, None not at all.
    """
    from tensorboard.plugins.hparams import summary_v2

    known = {name: value for name, value in values.items() if value is not None}
    plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in known.items()}
    content = _record(file_version="brain.Event:2") + _record(summary=summary_v2.hparams_pb(plain))
    files.replace_file(os.path.join(directory, "events.out.tfevents.0.hparams"), content)


def _record(**fields: Any) -> bytes:
    """Returns the record of an event of now; messages within it may be dicts."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())
    return framed.getvalue()
