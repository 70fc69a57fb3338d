"""Sources: random access to the examples of a split.

A source is created by `function(split, **keywords)`, `split` in the notation of tfds ("train[:90%]"). It has
`len(source)`; `source.num_classes`, and `classes` and `columns` if known; `source.read(ids)`, which returns the batch
of int64 [n] ids inside `Dataset.map`; and, if it reads files, `source.verify()`, which reads everything and raises an
error for the first damaged example. The constructor checks what it can without reading all files, and runs no
TensorFlow operation, so that devices can be configured after it.
"""

from tfdist.zoo.sources.arrays import arrays, digits, npz
from tfdist.zoo.sources.folder import image_folder
from tfdist.zoo.sources.indexed import indexed
from tfdist.zoo.sources.synthetic import synthetic
from tfdist.zoo.sources.table import table
from tfdist.zoo.sources.tfds_dataset import tfds
from tfdist.zoo.sources.tfrecord import tfrecord

__all__ = [
    "arrays",
    "digits",
    "image_folder",
    "indexed",
    "npz",
    "synthetic",
    "table",
    "tfds",
    "tfrecord",
]
