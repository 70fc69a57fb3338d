"""TensorBoard event files, written record by record. Imports no TensorFlow.

Not tensorboard's own EventFileWriter: its thread buffers records and raises the error of a full disk at a later call,
or at exit. Here each record is written or not when it is reported.
"""

import glob
import io
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from tfdist.report import files
from tfdist.report.files import AppendOnlyFile

TENSORBOARD = "tensorboard"
_BUCKETS = 30


def open_event_file(directory: str, last_step: int | None) -> AppendOnlyFile:
    """Opens a new event file in `directory`, which makes TensorBoard discard older data of steps after `last_step`.

    TensorBoard's Python readers discard it immediately; its fast reader (the default) discards a tag's data when the
    tag is written again. None as `last_step` discards nothing.

    Raises:
        OSError: the file cannot be written.
    """
    from tensorboard.compat.proto import event_pb2

    os.makedirs(directory, exist_ok=True)
    timestamps = [re.search(r"tfevents\.(\d+)", name) for name in glob.glob(f"{glob.escape(directory)}/*tfevents.*")]
    # TensorBoard reads files in the order of their names: the timestamp must be newer than that of all others.
    timestamp = max([int(time.time()), *(int(match[1]) + 1 for match in timestamps if match)])
    file = files.open_append_only(
        os.path.join(directory, f"events.out.tfevents.{timestamp}.{socket.gethostname()}.{os.getpid()}")
    )
    file.append(_framed(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")))
    if last_step is not None:
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        file.append(_framed(event_pb2.Event(wall_time=time.time(), step=last_step + 1, session_log=restart)))
    return file


def scalars_record(step: int, scalars: dict[str, float]) -> bytes:
    """Returns the record of `scalars`, tag -> value, at `step`."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    # Not a tensor as tf.summary writes it: readers discard only simple_value after a restart.
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    return _framed(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))


def graph_record(graph_def: bytes) -> bytes:
    """Returns the record of a graph, a serialised GraphDef."""
    from tensorboard.compat.proto import event_pb2

    return _framed(event_pb2.Event(wall_time=time.time(), graph_def=graph_def))


def histograms_record(step: int, arrays: Mapping[str, Any]) -> bytes:
    """Returns the record of one histogram per array of `arrays`, tag -> NumPy array of floats, at `step`.

    Non-finite values are skipped, and so are arrays without finite values.
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
            # In TensorBoard a bucket starts at the limit of the previous one; the first bucket is empty.
            histogram.bucket_limit.extend(edges)
            histogram.bucket.extend([0, *counts])
            values.append(summary_pb2.Summary.Value(tag=tag, histo=histogram))
    return _framed(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))


def _framed(event: Any) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event.SerializeToString())
    return framed.getvalue()
