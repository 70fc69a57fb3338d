"""Compares layers on one core with and without their fusion: `python -m tests.benchmark.fused_layers`.

Forward and backward pass in a loop within one call of TensorFlow, in turns; the smallest processor time of a layer,
less that of a loop without one.
"""

import time
from collections.abc import Callable

from absl import app, flags

from tfdist.tools import tables

SHAPES = (
    *(("GELU", (16, 64, 1024)), ("SiLU", (16, 64, 1024)), ("layer normalisation", (64, 64, 512))),
    *(("batch normalisation", (64, 32, 32, 16)), ("batch normalisation", (64, 1024))),
)
# Passes of a turn.
PASSES = 10


def turns(call: Callable, inputs: object, policy: str) -> Callable[[], float]:
    """Returns a function that measures milliseconds of processor time of a forward and backward pass of `call`."""
    import tensorflow as tf

    @tf.function
    def loop(inputs):
        def body(index, inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = call(inputs)
            gradient = tape.gradient(outputs, inputs, output_gradients=tf.cast(inputs, outputs.dtype))
            return index + 1, inputs + tf.cast(1e-6, inputs.dtype) * gradient

        return tf.while_loop(lambda index, _: index < PASSES, body, [0, inputs], parallel_iterations=1)[1]

    inputs = tf.cast(inputs, "bfloat16" if policy == "mixed_bfloat16" else "float32")
    loop(inputs)

    def turn() -> float:
        started = time.process_time()
        loop(inputs)
        return (time.process_time() - started) / PASSES * 1000

    return turn


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    import keras
    import tensorflow as tf

    from tfdist.training.step.layers import fused

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    make = {
        "GELU": lambda policy: keras.layers.Activation("gelu", dtype=policy),
        "SiLU": lambda policy: keras.layers.Activation("silu", dtype=policy),
        "layer normalisation": lambda policy: keras.layers.LayerNormalization(dtype=policy),
        "batch normalisation": lambda policy: keras.layers.BatchNormalization(dtype=policy),
    }
    rows = []
    for policy in ("float32", "mixed_bfloat16"):
        for name, shape in SHAPES:
            plain, other = make[name](policy), make[name](policy)
            fused.fuse(keras.Sequential([other]))
            inputs = tf.random.normal(shape, seed=1)
            calls = [lambda x, layer=layer: layer(x, training=True) for layer in (plain, other)]
            participants = [turns(call, inputs, policy) for call in (*calls, lambda x: x * 2)]
            times = [[turn() for turn in participants] for _ in range(flags.FLAGS.rounds)]
            keras_ms, fused_ms, nothing = map(min, zip(*times, strict=True))
            columns = [f"{keras_ms - nothing:.2f}", f"{fused_ms - nothing:.2f}"]
            rows.append([name, "x".join(map(str, shape)), policy.removeprefix("mixed_"), *columns])
    print(tables.text(["layer", "inputs", "precision", "Keras, ms", "fused, ms"], rows))


if __name__ == "__main__":
    flags.DEFINE_integer("rounds", 7, "Turns of each participant.")
    app.run(main)
