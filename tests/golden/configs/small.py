"""A perceptron, for variants that do not go together with all of configs/everything.py; also the interrupted run."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    plateau = {"target": "keras.callbacks:ReduceLROnPlateau", "monitor": "val_loss", "min_delta": 0.1, "patience": 1}
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp", "input_shape": (8, 8, 1), "hidden": (8,), "l2": 1e-4},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "pad": 1},
            train_split="train[:250]",
            evaluation_split="test[:91]",
            batch_size=32,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True},
        learning_rate=c.LearningRate(peak=0.05, schedule={"target": "tfdist.zoo.schedules:settable"}),
        train=c.Train(epochs=4, call_seconds=1e-6),
        checkpoint=c.Checkpoint(every=c.Every(steps=5), keep=1, best_metric="accuracy", export=False),
        callbacks=[plateau | {"factor": 0.5}, {"target": "tests.golden.parts:Stop"}],
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=240.0),
    )
