"""TensorBoard event files, written record by record without TensorFlow."""

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


def open_events(directory: str, last_step: int | None) -> AppendOnlyFile:
    """Starts an event file for TensorBoard, which then forgets what older ones say of steps after `last_step`.

    TensorBoard's readers in Python forget it at once, its fast one (the default) a tag when it comes by again. The
    records are framed by `tensorboard` itself: no operation of TensorFlow runs, and a full disk shows at once.
    """
    from tensorboard.compat.proto import event_pb2

    os.makedirs(directory, exist_ok=True)
    moments = [re.search(r"tfevents\.(\d+)", name) for name in glob.glob(f"{glob.escape(directory)}/*tfevents.*")]
    # TensorBoard reads the files in the order of their names, however quickly one start follows another.
    moment = max([int(time.time()), *(int(match[1]) + 1 for match in moments if match)])
    file = files.open_append_only(
        os.path.join(directory, f"events.out.tfevents.{moment}.{socket.gethostname()}.{os.getpid()}")
    )
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
