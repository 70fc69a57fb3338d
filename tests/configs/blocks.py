"""Residual blocks with batch normalisation and dropout, for a few steps."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.lab:blocks", "num_classes": 10},
        data=c.Data(
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=32,
        ),
        optimizer={"target": "keras.optimizers:Adam", "learning_rate": 0.01},
        train=c.Train(steps=5),
        checkpoint=c.Checkpoint(export=False),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
