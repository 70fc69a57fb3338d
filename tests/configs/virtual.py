"""A network with dropout, batch normalisation and penalties, on 8 virtual replicas, for a few steps."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.lab:mixed", "num_classes": 10},
        data=c.Data(
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "pad": 1, "flip": True},
            batch_size=64,
            evaluation_batch_size=64,
        ),
        optimizer={"target": "keras.optimizers:Adam"},
        learning_rate=c.LearningRate(peak=0.003),
        train=c.Train(steps=12, clip_norm=0.5, virtual_replicas=8),
        evaluation=c.Evaluation(every=c.Every(steps=6)),
        checkpoint=c.Checkpoint(every=c.Every(steps=6), export=False),
        report=c.Report(every=c.Every(steps=2), tensorboard=False, state_hash="reports"),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
