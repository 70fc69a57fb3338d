"""A perceptron whose gradients are compressed, for a few steps; the first 3 of them exact."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (8, 8, 1), "hidden": (32,)},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=48,
            evaluation_split=None,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(peak=0.05),
        train=c.Train(steps=20, clip_norm=2.0),
        communication=c.Communication(compression=c.Compression(rank=2, exact_steps=3, smallest=64)),
        checkpoint=c.Checkpoint(every=c.Every(steps=10), export=False),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
