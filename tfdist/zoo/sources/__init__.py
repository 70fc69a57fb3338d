"""Sources: random access to the examples of a split.

A source is made by `function(split, **keywords)`, `split` in tfds' notation ("train[:90%]"), and has `len(source)`,
`source.num_classes`, `source.read(ids)`, which turns int64 [n] into a batch inside `Dataset.map`, and
`source.verify()`, which reads everything and names the first damaged example. Making one checks what can be checked
without reading the examples, and runs no TensorFlow operation: devices can still be configured after it.
"""

from tfdist.zoo.sources.arrays import arrays, digits, npz
from tfdist.zoo.sources.folder import image_folder
from tfdist.zoo.sources.imagenet import imagenet
from tfdist.zoo.sources.synthetic import line, synthetic
from tfdist.zoo.sources.tfds_dataset import tfds

__all__ = ["arrays", "digits", "image_folder", "imagenet", "line", "npz", "synthetic", "tfds"]
