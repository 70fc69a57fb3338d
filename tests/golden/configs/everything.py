"""A small network with synchronised normalisation, dropout and all else that can be on at the same time.

The callbacks lower the learning rate after the second epoch and end the run after the third of five.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    plateau = {"target": "keras.callbacks:ReduceLROnPlateau", "monitor": "val_loss", "min_delta": 9.0, "patience": 1}
    stopping = {"target": "keras.callbacks:EarlyStopping", "monitor": "val_loss", "min_delta": 9.0, "patience": 2}
    return c.Config(
        model={"target": "tests.golden.parts:everything"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tests.golden.parts:damaged", "scale": 1 / 16, "pad": 1, "flip": True, "cutout": 2},
            train_split="train[:200]",
            evaluation_split="test[:91]",
            batch_size=24,
            evaluation_batch_size=36,
            cache="raw",
        ),
        objective={"target": "tfdist.zoo.objectives:classification", "label_smoothing": 0.1, "top5": True},
        # An epsilon that keeps differences of rounding small: Adam makes whole steps of gradients near zero.
        optimizer={"target": "keras.optimizers:AdamW", "weight_decay": 0.01, "epsilon": 1e-2},
        learning_rate=c.LearningRate(
            peak=0.01,
            schedule={"target": "tfdist.zoo.schedules:settable"},
            scaling="sqrt",
            reference_batch_size=32,
        ),
        # Calls of one step: how sums are split into calls would otherwise depend on the clock, and so their last bit.
        train=c.Train(epochs=5, clip_norm=1.0, nonfinite="skip", call_seconds=1e-6),
        communication=c.Communication(bytes_per_pack=4096),
        checkpoint=c.Checkpoint(every=c.Every(steps=5), keep=2, best_metric="loss", best_mode="min"),
        callbacks=[plateau | {"factor": 0.5}, stopping],
        report=c.Report(every=c.Every(steps=1)),
        cluster=c.ClusterOptions(connect_seconds=240.0),
        seed=3,
    )
