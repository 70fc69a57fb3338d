"""CIFAR-10 in a few minutes: `configs/cifar.py` with what the public speed records add (arXiv 2404.00498).

Larger batches, a learning rate of their own for the offsets of the normalisation, lookahead, and the mean over an image
and its mirror image in evaluation.

RESULTS
"""

from configs import cifar
from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    config = cifar.get_config()
    config.data.batch_size = 1024
    config.objective["mirror"] = True
    config.optimizer = {
        "target": "tfdist.zoo.optimizers:lookahead_sgd",
        "momentum": 0.85,
        "weight_decay": 8.9e-3,
        "offset_rate": 64.0,
    }
    config.learning_rate.peak = 1.5
    config.train.epochs = 10
    config.report.every = c.Every(steps=24)
    return config
