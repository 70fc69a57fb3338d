"""BSC CTE-POWER course, tasks 4 to 7: ResNet50V2 on CIFAR-10 at 128x128 pixels, on 1, 2 and 4 GPUs.

    python -m tfdist.main --config=configs/courses/bsc_resnet50v2.py --config.data.source.path=cifar-10-batches-py
    python -m tfdist scaling --config=configs/courses/bsc_resnet50v2.py --replicas=1,2,4 --epochs=5

| on the page | here |
|---|---|
| `ResNet50V2(weights=None, input_shape=(128, 128, 3), classes=10)`, softmax | the same, 23,585,290 parameters |
| `tf.image.resize` to 128x128, pixels / 255, no shuffle, no augmentation | the same |
| batch 256 a GPU; `SGD(0.01 * n_gpus)`, no momentum | batch 256; 0.01 x batch / 256 |
| sparse categorical cross-entropy, accuracy, 5 epochs, no evaluation | the same |
| 196 steps an epoch: the last batch is smaller | 195 steps: the last 80 images of an epoch are left out |

The page's results on V100 GPUs of 16 GB, accuracy in training after each of the epochs:

| GPUs | batch | first epoch | later epochs | accuracy |
|---|---|---|---|---|
| 1 | 256 | 49 s | 45 s | 0.2506, 0.3536, 0.4164, 0.4668, 0.5070 |
| 2 | 512 | 26 s | 24 s | ..., 0.5049 |
| 4 | 1024 | 14 s | 12 s | ..., 0.5010 |

ResNet152V2, task D: `--config.model.name=ResNet152V2`. On n GPUs `--config.data.batch_size` is 256 n.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.configs.networks.courses:application",
            "name": "ResNet50V2",
            "classes": 10,
            "input_shape": (128, 128, 3),
        },
        data=c.Data(
            source={"target": "tfdist.configs.networks.cifar:cifar", "path": "cifar-10-batches-py"},
            prepare={"target": "tfdist.configs.networks.courses:images", "resize": (128, 128)},
            evaluation_split=None,
            batch_size=256,
            shuffle=False,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.01, scaling="linear", reference_batch_size=256),
        train=c.Train(epochs=5),
        report=c.Report(every=c.Every(epochs=1)),
    )
