"""A small convolutional network on handwritten digits of 8x8 pixels, which the package includes.

    python -m tfdist.main --config=configs/digits.py

On two CPU cores: about 15 s including the start, 99.4 % of the 355 test digits (353 right) with seed 0.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "group_size": 16},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16},
            batch_size=64,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
        learning_rate=c.LearningRate(peak=0.1, schedule={"target": "tfdist.zoo.schedules:cosine"}, warmup_epochs=2),
        train=c.Train(epochs=30),
        evaluation=c.Evaluation(every=c.Every(epochs=5)),
        checkpoint=c.Checkpoint(every=c.Every(epochs=5), best_metric="accuracy"),
    )
