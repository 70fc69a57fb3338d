"""ResNet50 on ImageNet, 90 epochs after Goyal et al. (arXiv 1706.02677); or any network of keras.applications.

    python -m tfdist.main --config=configs/imagenet.py --config.data.source.path=/data/imagenet

The path holds TFRecord files in the usual layout, train-00000-of-01024 and validation-00000-of-00128. With ImageNet
prepared by tensorflow-datasets, set the source:

    --config.data.source="{'target': 'tfdist.zoo.sources:tfds', 'name': 'imagenet2012', 'encoded': True}"

On GPUs, bfloat16 is faster: --config.train.precision=bfloat16 (float16 before compute capability 8.0).
Not run on ImageNet itself, which was not available. The same code was run on small images in that layout.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.models:application",
            "name": "ResNet50",
            "num_classes": 1000,
            "input_shape": (224, 224, 3),
        },
        data=c.Data(
            source={"target": "tfdist.configs.networks.imagenet:imagenet", "path": "imagenet"},
            prepare={"target": "tfdist.zoo.inception:image", "size": 224},
            evaluation_split="validation",
            batch_size=256,
        ),
        objective={"target": "tfdist.zoo.objectives:classification", "label_smoothing": 0.1, "top5": True},
        # Keras applies weight decay outside the momentum of 0.9: 1e-3 here is a decay of 1e-4 in the gradient.
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
        learning_rate=c.LearningRate(
            peak=0.1,
            scaling="linear",
            reference_batch_size=256,
            schedule={"target": "tfdist.zoo.schedules:step", "at": (1 / 3, 2 / 3, 8 / 9)},
            warmup_epochs=5,
        ),
        train=c.Train(epochs=90),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
        report=c.Report(every=c.Every(steps=100)),
    )
