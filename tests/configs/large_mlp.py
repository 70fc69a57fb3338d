"""A perceptron with 17 million weights, trained by Adam: its slots have twice the memory of the weights."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.models:mlp",
            **{"num_classes": 10, "input_shape": (8, 8, 1), "hidden": (1024,) * 17},
        },
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=32,
            evaluation_split=None,
        ),
        optimizer={"target": "keras.optimizers:Adam"},
        learning_rate=c.LearningRate(peak=1e-4),
        train=c.Train(steps=40, call_seconds=1e-3),
        checkpoint=c.Checkpoint(every=c.Every(steps=1000), export=False),
        consistency=c.Consistency(every=c.Every(steps=1000)),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=120.0),
    )
