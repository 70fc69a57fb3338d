"""What the sources of files share: reading, keeping in memory, naming what is damaged, noticing changed files."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.data import cache, read_ahead
from tfdist.data.feed import Batch
from tfdist.zoo import splits

_NODE = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*|Error in user-defined function .*? iterator: \S+ ")
# Files that are looked at, evenly spaced: on a parallel file system each costs up to a millisecond.
_MAX_FILES = 10_000


class FileSource:
    """Examples of files, decoded whenever they are read, or once.

    A subclass has `load(ids)`, which returns the examples `ids`, int64 [n], from the files, and `place(example)`, which
    says where an example is; and `check` if `load` does not show all damage.
    """

    num_classes: int | None = None
    classes: Sequence[str] | None = None

    def __init__(self, name: str, part: splits.Slice, files: Sequence[str], advice: str):
        """`name` is for messages, and `advice` the sentence about a damaged example; the files may be remote."""
        self.name, self.part, self.files, self.advice = name, part, files, advice
        self.memory: cache.InMemoryArrays | None = None

    def __len__(self) -> int:
        return self.part.stop - self.part.start

    def __repr__(self) -> str:
        kept = "in memory" if self.memory else "read from files"
        return f"{self.name}, {self.part.name}[{self.part.start}:{self.part.stop}]: {len(self)} examples, {kept}"

    def check(self, ids: tf.Tensor) -> Any:
        """Returns tensors that depend on all of these examples; fails if one is damaged."""
        return self.load(ids)

    def keep_in_memory(self) -> None:
        """Reads all examples once, at the first `read`."""
        self.memory = cache.in_memory(self, self.load)

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids`, int64 [n], as {feature: [n, ...]}."""
        return self.memory.gather(ids) if self.memory else self.load(ids)

    def arrays_of_part(self, examples: range) -> cache.InMemoryArrays | None:
        """Moves these examples to arrays of their own; None: they are read from files."""
        return self.memory and self.memory.part(examples)

    def verify(self) -> None:
        """Reads all examples; raises ValueError, which names the place of the first that cannot be read."""
        for text in self.damaged():
            raise ValueError(text)

    def damaged(self) -> Iterator[str]:
        """Yields a sentence for each example that cannot be read."""
        check = tf.autograph.experimental.do_not_convert(self.check)
        one_by_one = tf.data.Dataset.range(len(self)).batch(1, drop_remainder=True)
        mapped = one_by_one.map(check, num_parallel_calls=tf.data.AUTOTUNE)
        checked = iter(read_ahead.without_autotuning(mapped))
        for example in range(len(self)):
            try:
                next(checked)
            except tf.errors.OpError as error:
                yield f"{self.place(example)} cannot be read: {reason(error)} {self.advice}"

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files, or of 10,000 of them; "" if they are remote."""
        chosen = self.files[:: -(-len(self.files) // _MAX_FILES)]
        if any("://" in path for path in chosen):
            return ""
        return digest(repr((len(self.files), [(one.st_size, one.st_mtime_ns) for one in map(os.stat, chosen)])))


def digest(*parts: str | bytes) -> str:
    """Returns a short hash, for fingerprints."""
    whole = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(whole).hexdigest()[:16]


def reason(error: Exception) -> str:
    """Returns the first line of `error`'s message, without the names of TensorFlow's nodes, with a full stop."""
    text = _NODE.sub("", str(error).strip()).split("\n")[0].strip()
    return text if text.endswith(".") else f"{text}."
