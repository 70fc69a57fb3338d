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
        by_groups = math.lcm(by, groups) if type(groups) is int and groups > 0 else by
        parts = f" in {by // num_replicas} parts each" if by > num_replicas else ""
        raise ValueError(
            f"config.data.batch_size={batch} cannot be divided among {num_replicas} replicas{parts}: "
            f"{_advice(batch, by_groups)}, or change the number of replicas."
        )


def _advice(value: int, by: int) -> str:
    """Returns what to set instead of `value`: the nearest multiples of `by` below and above it."""
    lower = value // by * by
    nearest = [lower, lower + by] if lower else [by]
    best = min(nearest, key=lambda one: abs(one - value))
    return f"set it to {' or '.join(map(str, nearest))}, such as --config.data.batch_size={best}"
