"""A network that uses all that could differ between topologies, trained for a few steps on the shipped digits."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.models:small_cnn",
            "num_classes": 10,
            "filters": (8, 16),
            "normalization": "sync_batch",
            "group_size": None,
            "l2": 1e-3,
        },
        data=c.Data(
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "pad": 1, "flip": True},
            batch_size=48,
            evaluation_batch_size=60,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "weight_decay": 1e-3},
        learning_rate=c.LearningRate(
            peak=0.05, scaling="linear", reference_batch_size=32, schedule={"target": "tfdist.zoo.schedules:cosine"}
        ),
        train=c.Train(steps=20, clip_norm=0.5),
        evaluation=c.Evaluation(every=c.Every(steps=15)),
        checkpoint=c.Checkpoint(every=c.Every(steps=10)),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
