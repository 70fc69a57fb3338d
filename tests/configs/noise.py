"""A linear classifier of the digits, whose gradients NumPy computes, with the gradient noise scale in its reports."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.lab:linear", "num_classes": 10},
        data=c.Data(
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=48,
            shuffle=False,
            evaluation_split=None,
        ),
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.1),
        train=c.Train(steps=8),
        checkpoint=c.Checkpoint(every=c.Every(steps=4), export=False),
        report=c.Report(every=c.Every(steps=4), noise_scale=3, tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=120.0),
    )
