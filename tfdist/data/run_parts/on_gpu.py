"""Images stay bytes until they are on the GPU: the part of the preprocessing that makes them floats moves there.

A step of ResNet50V2 with 128 images of 224x224 copies 19 MB in place of 77. On an H200, with XLA, it takes 20.9 ms in
place of 30.5 in bfloat16, and 32.4 in place of 41.5 in float32.
"""

import dataclasses

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import specs
from tfdist.data import autograph, inputs
from tfdist.data.pipelines import Inputs


def divide_preprocessing(
    config: config_lib.Config, opened: Inputs
) -> tuple[config_lib.Config, Inputs, tuple[str, ...]]:
    """Returns the config and the functions of a run on GPUs, and lines for the start of the log: none if nothing moves.

    A function for `config.data.prepare` that can be divided has `halves`, which returns the specs of both halves for
    its keyword arguments, or None. Only stored values of one or two bytes are copied: floats are no longer than the
    result. A config that sets `data.finish` is unchanged.
    """
    data, unchanged = config.data, (config, opened, ())
    halves = getattr(specs.resolve(data.prepare, field="config.data.prepare"), "halves", None)
    divided = halves and halves({key: value for key, value in data.prepare.items() if key != "target"})
    if not divided or data.finish is not None or opened.train_source is None or opened.pipeline.connects_first:
        return unchanged
    read = tf.autograph.experimental.do_not_convert(autograph.convert_read(opened.train_source))
    stored = tf.data.Dataset.from_tensors(tf.zeros([1], tf.int64)).map(read).element_spec
    if "image" not in stored or stored["image"].dtype.size > 2:
        return unchanged
    config = dataclasses.replace(config, data=dataclasses.replace(data, prepare=divided[0], finish=divided[1]))
    sources = {"train_source": opened.train_source, "evaluation_source": opened.evaluation_source}
    line = f"copies     images to the GPU as {stored['image'].dtype.name}: they are normalised there"
    return config, dataclasses.replace(inputs.open_functions(config), **sources), (line,)
