"""Batch sizes and the number of replicas: which go together. Imports no TensorFlow."""

from tfdist.config.schema import Config


def evaluation_batch_size(config: Config) -> int:
    """Returns the examples in one evaluation step, over all replicas."""
    return config.data.evaluation_batch_size or config.data.batch_size


def divisor(config: Config, num_replicas: int) -> int:
    """Returns what must divide `config.data.batch_size`: replicas times their micro-batches or local steps."""
    return num_replicas * config.train.micro_batches * config.train.local_steps


def are_divisible(config: Config, num_replicas: int) -> bool:
    """Returns whether the batches of training and evaluation can be divided among `num_replicas`."""
    return (
        config.data.batch_size % divisor(config, num_replicas) == 0
        and evaluation_batch_size(config) % num_replicas == 0
    )


def check_divisible(config: Config, num_replicas: int) -> None:
    """Checks that the batches of training and evaluation can be divided among `num_replicas`.

    Raises:
        ValueError: names the field, its value and the nearest values that can be divided.
    """
    if are_divisible(config, num_replicas):
        return
    batch, by = config.data.batch_size, divisor(config, num_replicas)
    if batch % by:
        lower = batch // by * by
        advice = f"{lower} or {lower + by}" if lower else str(by)
        parts = f" in {by // num_replicas} parts each" if by > num_replicas else ""
        raise ValueError(
            f"config.data.batch_size={batch} cannot be divided among {num_replicas} replicas{parts}: "
            f"set it to {advice}, or change the number of replicas."
        )
    raise ValueError(
        f"config.data.evaluation_batch_size={evaluation_batch_size(config)} cannot be divided among "
        f"{num_replicas} replicas: set it to a multiple of {num_replicas}."
    )
