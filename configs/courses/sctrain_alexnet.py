"""SCtrain course (IT4Innovations): AlexNet as printed, on images of 256x256 pixels.

    python -m tfdist.main --config=configs/courses/sctrain_alexnet.py --config.data.source.path=cifar-10-batches-py

| on the page | here |
|---|---|
| four convolutions, zero padding after each, dropout in front of the dense layers, softmax | the same |
| 10 classes: 70,086,218 parameters at 256x256, 56,454,730 at 224x224 | the same, `form` sequential or functional |
| `SGD(lr=.001, momentum=0.8)` | the same rate and momentum (Keras 3 has renamed `lr`) |
| `fit(epochs=100)` | the same |
| the data set is not named | CIFAR-10, enlarged to 256x256 |

The page prints no results and no batch; 128 is this config's choice. For GPUs: one step takes seconds on a CPU. Another
size: `--config.model.input_shape=[224,224,3] --config.data.prepare.resize=[224,224]`.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.configs.networks.courses:alexnet",
            "classes": 10,
            "input_shape": (256, 256, 3),
            "form": "sequential",
        },
        data=c.Data(
            source={"target": "tfdist.configs.networks.cifar:cifar", "path": "cifar-10-batches-py"},
            prepare={"target": "tfdist.configs.networks.courses:images", "resize": (256, 256)},
            batch_size=128,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.8},
        learning_rate=c.LearningRate(peak=0.001),
        train=c.Train(epochs=100),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
