"""The two-convolution network of MNIST on the digits of the package, enlarged to 28x28: the example for a class.

    python -m tfdist.main --config=configs/digits28.py
    python -m tfdist scaling --config=configs/digits28.py --replicas=1,2

Nothing is downloaded. A step computes long enough for two replicas to be faster than one (docs/data-parallelism.md);
the network of `configs/digits.py` is too small for that.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mnist_cnn", "num_classes": 10},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "resize": (28, 28), "scale": 1 / 16},
            batch_size=128,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True},
        learning_rate=c.LearningRate(peak=0.02, schedule={"target": "tfdist.zoo.schedules:cosine"}, warmup_epochs=1),
        train=c.Train(epochs=10),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
