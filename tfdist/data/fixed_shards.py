"""`config.data.shards`: an example always belongs to one worker, and no other worker reads or caches it.

"fixed": example i to worker i mod W. "contiguous": each worker has consecutive examples, and reads only their files.
"""

from typing import Any

import tensorflow as tf

from tfdist.data import autograph
from tfdist.data.feed import Batch
from tfdist.data.order import WorkerExamples
from tfdist.data.stream import ReplicaShard, Source


class PartSource:
    """The examples of one worker, numbered from 0. Examples in memory are moved out of `source`."""

    def __init__(self, source: Source, part: WorkerExamples):
        self._source, self.worker_examples = source, part
        arrays = getattr(source, "arrays_of_part", lambda _: None)(part.examples())
        read = autograph.convert_read(source) if arrays is None else arrays.gather
        self._read = (lambda rows: read(part.ids(rows))) if arrays is None else read

    def __len__(self) -> int:
        return len(self.worker_examples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)  # What a source may have: `num_classes`, `verify` and others.

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids` of the part, int64 [n]."""
        return self._read(ids)

    def fingerprint(self) -> str:
        """Returns the fingerprint of the whole source, and the number of the part."""
        whole, part = getattr(self._source, "fingerprint", str)(), self.worker_examples
        return f"{whole} {part.index} of {part.count}{' contiguous' * part.contiguous}"


def divide(source: Source, shard: ReplicaShard, split: str, shards: str) -> PartSource:
    """Returns the examples of this worker.

    Args:
        source: the whole split. If it keeps its examples in memory, it should have
            `arrays_of_part(examples)`, as the shipped sources have; otherwise memory does not decrease.
        shards: "fixed" or "contiguous", see `config.data.shards`.

    Raises:
        ValueError: there are fewer examples than workers.
    """
    part = WorkerExamples(
        total=len(source),
        index=shard.first_replica // shard.local_replicas,
        count=shard.num_replicas // shard.local_replicas,
        contiguous=shards == "contiguous",
    )
    if part.total < part.count:
        raise ValueError(
            f'config.data.shards="{shards}" needs an example for each of the {part.count} workers, but the split '
            f'{split!r} has {part.total}: use fewer workers, or set config.data.shards to "batch".'
        )
    return PartSource(source, part)
