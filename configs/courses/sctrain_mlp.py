"""SCtrain course (IT4Innovations), hands-on: the perceptron 784-128-10 on MNIST, as printed.

    python -m tfdist.main --config=configs/courses/sctrain_mlp.py --config.data.source.path=mnist.npz

| on the page | here |
|---|---|
| flatten, dense 128 with ReLU, softmax; Glorot-uniform | the same, 101,770 parameters |
| pixels / 255; shuffled over the whole split; examples that the workers cannot share evenly are dropped | the same |
| `batch(32)` per worker | batch 32 for one worker; on N workers `--config.data.batch_size` is 32 N |
| names no optimizer ("SGD, Adam, etc."); evaluation on "test" | Adam(0.001), 6 epochs, as in the tfds example |

The page prints no results. `mnist.npz` is the file of `keras.datasets.mnist`.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.configs.networks.courses:mlp"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:npz", "path": "mnist.npz"},
            prepare={"target": "tfdist.configs.networks.courses:images"},
            batch_size=32,
            evaluation_batch_size=1024,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:Adam"},
        learning_rate=c.LearningRate(peak=0.001),
        train=c.Train(epochs=6),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
