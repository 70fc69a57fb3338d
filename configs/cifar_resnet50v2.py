"""ResNet50V2 on CIFAR-10, enlarged to 128x128 pixels: 256 images per replica, learning rate times replicas.

    python -m tfdist.main --config=configs/cifar_resnet50v2.py --config.data.source.download=true

The batch size below is for one replica. On four, set `--config.data.batch_size=1024`; the learning rate scales with it.
ResNet152V2 is `--config.model.name=ResNet152V2`. On GPUs, bfloat16 is faster: --config.train.precision=bfloat16
(float16 before compute capability 8.0). To measure the time for several numbers of replicas:

    python -m tfdist scaling --config=configs/cifar_resnet50v2.py --replicas=1,2,4
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.models:application",
            "name": "ResNet50V2",
            "num_classes": 10,
            "input_shape": (128, 128, 3),
        },
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "cifar10", "download": False},
            prepare={
                "target": "tfdist.zoo.prepare:image",
                "resize": (128, 128),
                "flip": True,
                "mean": (0.5, 0.5, 0.5),
                "std": (0.5, 0.5, 0.5),
            },
            batch_size=256,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(
            peak=0.1,
            scaling="linear",
            reference_batch_size=256,
            schedule={"target": "tfdist.zoo.schedules:cosine"},
            warmup_epochs=2,
        ),
        train=c.Train(epochs=10),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
