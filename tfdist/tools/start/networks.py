"""The networks that `tfdist new` writes, as Python code for each kind of data."""

import math

from tfdist.tools.start import shipped
from tfdist.tools.start.look import Data


def code(name: str, data: Data) -> str:
    """Returns the module of the network for `data`."""
    if data.kind == "text":
        return shipped.fill("text", name=name, shape=data.shape)
    arguments, of_outputs = "num_classes" if data.classes else "", _of_outputs(data)
    if data.inputs == "image":
        stages = min(4, max(1, int(math.log2(min(data.shape[:2]))) - 2))
        filters = (16, 32, 64, 128)[:stages]
        return shipped.fill("images", name=name, shape=data.shape, filters=filters, arguments=arguments, **of_outputs)
    flat = len(data.shape) == 1
    values = f'read(10_000)["{data.inputs}"]'
    return shipped.fill(
        "dense",
        name=name,
        shape=data.shape,
        arguments=arguments and f"{arguments}, ",
        first="inputs" if flat else "layers.Flatten()(inputs)",
        values=values if flat else f"keras.ops.reshape({values}, (-1, {math.prod(data.shape)}))",
        **of_outputs,
    )


def _of_outputs(data: Data) -> dict[str, str]:
    """Returns what the outputs are, in words, and the last lines of the network."""
    if data.classes:
        last = "return keras.Model(inputs, layers.Dense(num_classes)(x))"
        return {"outputs": "logits, one per class", "last": last}
    mean, deviation = data.scale
    last = (
        f"x = layers.Dense({data.targets})(x)\n    # Outputs in the units of the targets: their deviation and mean.\n"
        f"    return keras.Model(inputs, layers.Rescaling({deviation:.6g}, {mean:.6g})(x))"
    )
    return {"outputs": "numbers", "last": last}


def is_adapted(data: Data) -> bool:
    """Returns whether the module has a function `adapt`."""
    return data.kind != "text" and data.inputs != "image"
