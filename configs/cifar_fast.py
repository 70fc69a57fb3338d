"""CIFAR-10 in a few minutes."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.airbench:network",
            "widths": (32, 128, 128),
            "num_classes": 10,
            "activation": "silu",
            "group_size": 128,
        },
        adapt={"target": "tfdist.zoo.airbench:whiten"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "cifar10", "download": False},
            prepare={
                "target": "tfdist.zoo.prepare:image",
                "pad": 2,
                "pad_mode": "reflect",
                "flip": "alternate",
                "mean": (0.4914, 0.4822, 0.4465),
                "std": (0.2470, 0.2435, 0.2616),
            },
            batch_size=1024,
            evaluation_batch_size=1000,
        ),
        objective={"target": "tfdist.zoo.objectives:classification", "label_smoothing": 0.2, "mirror": True},
        optimizer={
            "target": "tfdist.zoo.optimizers:lookahead_sgd",
            "momentum": 0.85,
            "weight_decay": 8.9e-3,
            "offset_rate": 64.0,
        },
        learning_rate=c.LearningRate(
            peak=1.5, schedule={"target": "tfdist.zoo.schedules:one_cycle", "peak_at": 0.23, "initial": 0.2}
        ),
        train=c.Train(epochs=10, precision="bfloat16"),
        report=c.Report(every=c.Every(steps=24)),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
