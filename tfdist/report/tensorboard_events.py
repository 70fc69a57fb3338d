"""TensorBoard event files: scalars and HParams. Imports no TensorFlow.

Training and evaluation are two runs (TensorBoard's name for a directory of event files). Their tags are the same, so
their curves share a chart, over optimizer steps.

tensorboard's RecordWriter encodes a record, which is appended to its file as a whole when it is reported. There is no
buffer, and no thread that reports a full disk later. The incomplete record of a killed run hides no other record,
because each start opens a new file. The new file says from which step on earlier files are invalid, and readers drop
these steps.
"""

import contextlib
import glob
import io
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from tfdist.report import files

TENSORBOARD = "tensorboard"
# The runs.
TRAIN, EVALUATION = "train", "evaluation"


def start_event_file(workdir: str, run: str, last_step: int | None) -> tuple[str, bytes]:
    """Makes the directory of `run`; returns the path of its event file in this start, and its first records.

    What earlier starts wrote is valid until `last_step` (None: all).
    """
    directory = os.path.join(workdir, TENSORBOARD, run)
    with contextlib.suppress(OSError):  # Writing the records will then fail, too.
        os.makedirs(directory, exist_ok=True)
    # Readers take the files in the order of their names, which contain the second of the start.
    others = (re.search(r"tfevents\.(\d+)", path) for path in glob.glob(f"{glob.escape(directory)}/*"))
    second = max([int(time.time()), *(int(found[1]) + 1 for found in others if found)])
    start = b"" if last_step is None else _record(step=last_step + 1, session_log={"status": "START"})
    name = f"events.out.tfevents.{second}.{socket.gethostname()}.{os.getpid()}"
    return os.path.join(directory, name), _record(file_version="brain.Event:2") + start


def scalars_record(step: int, values: Mapping[str, float]) -> bytes:
    """Returns the record of a report: all values by name."""
    # Not a tensor as tf.summary writes it: some readers drop only simple_value after a restart.
    return _record(step=step, summary={"value": [{"tag": tag, "simple_value": one} for tag, one in values.items()]})


def write_hparams(directory: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Writes the values of fields, by dotted name, for TensorBoard's HParams; raises OSError.

    As metrics, HParams shows the last scalars of the runs below `directory`. Values other than numbers, strings and
    booleans are written as strings; None is left out.
    """
    from tensorboard.plugins.hparams import summary_v2

    known = {name: value for name, value in values.items() if value is not None}
    plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in known.items()}
    content = _record(file_version="brain.Event:2") + _record(summary=summary_v2.hparams_pb(plain))
    files.replace_file(os.path.join(directory, "events.out.tfevents.0.hparams"), content)


def _record(**fields: Any) -> bytes:
    """Returns the record of an event at the current time; messages within it may be dicts."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())
    return framed.getvalue()
