"""A small convolutional network whose optimizer is divided between the replicas, for a few steps."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.lab:uneven", "num_classes": 10},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=48,
            evaluation_split=None,
        ),
        optimizer={"target": "keras.optimizers:AdamW"},
        learning_rate=c.LearningRate(peak=0.01),
        train=c.Train(steps=20, clip_norm=2.0, shard_optimizer=True),
        checkpoint=c.Checkpoint(every=c.Every(steps=10), export=False),
        consistency=c.Consistency(every=c.Every(steps=5)),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
