"""AlexNet on CIFAR-10, enlarged to 256x256 pixels: 58.3 million parameters, for GPUs.

    python -m tfdist.main --config=configs/alexnet.py --config.data.source.download=true

The images are stored at 32x32 and enlarged when they are read: at 256x256 they would take 10 GB.
On GPUs, bfloat16 is faster: --config.train.precision=bfloat16 (float16 before compute capability 8.0).
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.configs.networks.classic:alexnet", "num_classes": 10, "form": "functional"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "cifar10", "download": False},
            prepare={"target": "tfdist.zoo.prepare:image", "resize": (256, 256), "flip": True},
            train_split="train[:90%]",
            evaluation_split="train[90%:]",
            batch_size=128,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(
            peak=0.01,
            schedule={"target": "tfdist.zoo.schedules:step"},
            scaling="linear",
            reference_batch_size=128,
            warmup_epochs=1,
        ),
        train=c.Train(epochs=20),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
