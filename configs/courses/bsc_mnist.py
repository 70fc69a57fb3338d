"""BSC CTE-POWER course, tasks 2 and 3: the MNIST network, as printed.

    python -m tfdist.main --config=configs/courses/bsc_mnist.py --config.data.source.path=mnist.npz

| on the page | here |
|---|---|
| convolutions 5x5x32 and 5x5x64, pools, softmax; 62,346 parameters | the same |
| pixels / 255, categorical cross-entropy on one-hot labels | the same; integer labels give the same loss |
| `optimizer="sgd"`: SGD(0.01), no momentum | the same |
| batch 100, 5 epochs, shuffled | the same; a different permutation |
| loss 0.9553, 0.2631, 0.1904 in epochs 1, 2 and 3; accuracy 0.7612, 0.9235, 0.9446 | in each report |
| accuracy on "test" 0.9671 | the evaluation at the end |

MNIST was not available during development, so the last two rows were not reproduced. `mnist.npz` is the file of
`keras.datasets.mnist`.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.configs.networks.courses:mnist_cnn"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:npz", "path": "mnist.npz"},
            prepare={"target": "tfdist.configs.networks.courses:images"},
            batch_size=100,
            evaluation_batch_size=1000,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.01),
        train=c.Train(epochs=5),
        report=c.Report(every=c.Every(epochs=1)),
    )
