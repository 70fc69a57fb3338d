"""The two-convolution network on MNIST: 5x5x32, pool, 5x5x64, pool, dense 10.

    python -m tfdist.main --config=configs/mnist.py --config.data.source.download=true

The first run downloads MNIST; later ones need no `--config.data.source.download`. MNIST itself was not available during
development. On the shipped digits, enlarged to 28x28, the network reached 97.7 % of 355 test images after 30 epochs of
1,442 images, in a minute on two busy CPU cores, with

    python -m tfdist.main --config=configs/mnist.py --workdir=runs/mnist_digits --config.train.epochs=30 \\
        --config.data.source="{'target': 'tfdist.zoo.sources:digits'}" \\
        --config.data.prepare="{'target': 'tfdist.zoo.prepare:image', 'resize': (28, 28), 'scale': 0.0625}"
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mnist_cnn", "num_classes": 10},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "mnist", "download": False},
            prepare={"target": "tfdist.zoo.prepare:image"},
            batch_size=128,
            evaluation_batch_size=400,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True},
        learning_rate=c.LearningRate(peak=0.05, schedule={"target": "tfdist.zoo.schedules:cosine"}, warmup_epochs=0.5),
        train=c.Train(epochs=5),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
