"""TensorFlow's eager context in this process: its seed, and settings without a public API."""

from collections.abc import Sequence
from typing import Any

from tensorflow.python.eager import context


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
