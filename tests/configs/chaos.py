"""The interrupted run for the chaos test: longer, a batch that up to 32 workers divide, every step reported."""

from tests.configs import interrupted
from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    config = interrupted.get_config()
    # Wide enough that a kill can hit a save.
    config.model["width"] = 256
    config.data.batch_size = config.data.evaluation_batch_size = 96
    config.train.steps = 240
    config.objective["seconds"] = 0.06
    config.report.every.steps = 1
    return config
