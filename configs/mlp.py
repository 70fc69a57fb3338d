"""The perceptron 784-128-10 on MNIST, keeping the best checkpoint by the accuracy on the last tenth of "train".

python -m tfdist.main --config=configs/mlp.py --config.data.source.download=true
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "mnist", "download": False},
            prepare={"target": "tfdist.zoo.prepare:image"},
            train_split="train[:90%]",
            evaluation_split="train[90%:]",
            batch_size=128,
        ),
        optimizer={"target": "keras.optimizers:Adam"},
        learning_rate=c.LearningRate(peak=1e-3),
        train=c.Train(epochs=6),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
