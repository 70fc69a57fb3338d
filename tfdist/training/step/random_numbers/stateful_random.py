"""TensorFlow's stateful random ops, such as those of `tf.random.normal`, in a step.

They draw from a state that no checkpoint holds, so a resumed run would differ. While a replica's forward pass is
traced, they become stateless: functions of (seed, call, step, micro-batch, replica), like the ops of Keras' layers. In
the user's loops, branches and `tf.function`s, every iteration or call would then draw the same numbers. There the ops
are unchanged, and `data.guard` reports them, as it reports `tf.random.Generator` and rare distributions. `keras.random`
without a seed draws statelessly everywhere in a step.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.random import seed_generator
from tensorflow.python.ops import gen_random_ops

from tfdist.config.patching import patch
from tfdist.training.step.random_numbers import seed_generators

# The function of Keras that returns the generator of `keras.random` without a seed.
_KERAS_FUNCTION = "global_seed_generator"
# Function of TensorFlow that makes a stateful op -> the same, stateless, with a seed before the other arguments.
_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "random_standard_normal": lambda seed, shape, dtype, **_: tf.random.stateless_normal(shape, seed, dtype=dtype),
    "random_uniform": lambda seed, shape, dtype, **_: tf.random.stateless_uniform(shape, seed, dtype=dtype),
    "random_uniform_int": lambda seed, shape, minval, maxval, **_: tf.random.stateless_uniform(
        shape, seed, minval, maxval, tf.convert_to_tensor(minval).dtype
    ),
    "truncated_normal": lambda seed, shape, dtype, **_: tf.random.stateless_truncated_normal(shape, seed, dtype=dtype),
    "multinomial": lambda seed, logits, num_samples, output_dtype=tf.int64, **_: tf.random.stateless_categorical(
        logits, num_samples, seed, output_dtype
    ),
    "random_shuffle": lambda seed, value, **_: tf.random.experimental.stateless_shuffle(value, seed),
}


@contextlib.contextmanager
def draw_statelessly() -> Iterator[None]:
    """In the block, which all replicas share, forward passes that are traced draw statelessly."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(seed_generator, _KERAS_FUNCTION, _unseeded_of_keras))
        for name, stateless in _STATELESS.items():
            stack.enter_context(patch(gen_random_ops, name, functools.partial(_draw, stateless=stateless)))
        yield


def _draw(original: Callable[..., tf.Tensor], *args: Any, stateless: Callable[..., tf.Tensor], **keywords: Any) -> Any:
    generator = seed_generators.unseeded_generator(in_loops=False)
    if generator is None:
        return original(*args, **keywords)
    # `tf.random` numbers its calls itself if the user gives no seed.
    del keywords["seed"], keywords["seed2"]
    return stateless(generator.next(), *args, **keywords)


def _unseeded_of_keras(original: Callable[[], Any]) -> Any:
    """Replaces Keras' global generator. Keras creates it at the first call, but a step must not create variables."""
    return seed_generators.unseeded_generator(in_loops=True) or original()
