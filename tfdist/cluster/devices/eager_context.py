"""TensorFlow's eager context in this process: its seed, and settings without a public API."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.config import patching

_CHUNK_BYTES = 1 << 20


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`, or None."""
    return context.global_seed()


def configure_coordination(jobs: Sequence[Any], heartbeat_seconds: float) -> None:
    """Configures TensorFlow's coordination service; `jobs`: one `CoordinatedJob` with all workers."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=int(heartbeat_seconds * 1000),
        coordinated_jobs=jobs,
    )


def send_in_large_chunks() -> None:
    """Makes TensorFlow send chunks of 1 MB: with its 4 KB, copies take a sixth of an all-reduce's CPU time."""
    session = context.context()
    settings = session._config or tf.compat.v1.ConfigProto()
    if not settings.experimental.recv_buf_max_chunk:
        settings.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    patching.replace_attribute(session, "_config", settings)
