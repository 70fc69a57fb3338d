"""A ResNet-20 on images that are computed, for a few steps: for tests on GPUs."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.zoo.models:cifar_resnet", "depth": 20, "num_classes": 10, "normalization": "batch"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:synthetic", "num_examples": 320, "num_test_examples": 64},
            prepare={"target": "tfdist.zoo.prepare:image", "pad": 2, "flip": True},
            batch_size=32,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(peak=0.01),
        train=c.Train(steps=6),
        evaluation=c.Evaluation(every=c.Every()),
        checkpoint=c.Checkpoint(every=c.Every(steps=3), export=False),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
    )
