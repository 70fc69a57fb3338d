"""Checks that batch sizes can be divided among replicas. Imports no TensorFlow."""

import math

from tfdist.config.schema import Config


def evaluation_batch_size(config: Config, num_replicas: int) -> int:
    """Returns the examples in one evaluation step over all replicas: as configured, or a few more, for equal parts.

    The last step is padded, and a mask makes each example count once, so the size need not divide the split.
    """
    parts = config.train.virtual_replicas or num_replicas
    return -(-(config.data.evaluation_batch_size or config.data.batch_size) // parts) * parts


def check_divisible(config: Config, num_replicas: int) -> None:
    """Checks that the batches of the training can be divided among `num_replicas`.

    Raises:
        ValueError: names the field, its value, the nearest values that can be divided, and the flag that sets one.
    """
    batch, by = config.data.batch_size, num_replicas * config.train.micro_batches
    if batch % by:
        groups = config.model.get("group_size")  # The batch is a multiple of this, too.
        step = math.lcm(by, groups) if type(groups) is int and groups > 0 else by
        lower = batch // step * step
        nearest = [lower, lower + step] if lower else [step]
        best = min(nearest, key=lambda size: abs(size - batch))
        parts = f" in {by // num_replicas} parts each" if by > num_replicas else ""
        raise ValueError(
            f"config.data.batch_size={batch} cannot be divided among {num_replicas} replicas{parts}: set it to "
            f"{' or '.join(map(str, nearest))}, such as --config.data.batch_size={best}, or change the number of "
            "replicas."
        )
