"""A shallow, wide residual network (ResNet-9 at half its width, 1.6 million parameters) on CIFAR-10.

    python -m tfdist.main --config=configs/cifar.py --config.data.source.download=true

fetches CIFAR-10 and trains on all GPUs or on the CPU of this machine; later runs need not ask for the download. On
images in folders, DIR/train/CLASS/NAME.jpg and DIR/test/CLASS/NAME.jpg, and on two workers:

    python -m tfdist.launch --workers=2 -- --config=configs/cifar.py --workdir=runs/cifar \\
        --config.data.source="{'target': 'tfdist.zoo.sources:image_folder', 'path': 'DIR'}"

Two workers with one core each of an AMD EPYC (bfloat16), on CIFAR-10 as JPEG files of quality 75: 87.0 % of the 10,000
test images after a cycle of 10 epochs, 89.0 % after it was resumed as one of 20 with --allow_config_changes, at 200 to
500 examples/s on a busy machine: 28 minutes for either half. The first half was interrupted with kill -9 and resumed.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.zoo.models:resnet9",
            "width": 32,
            "num_classes": 10,
            # Statistics over 32 examples each: 1, 2 and 4 replicas are the same run, with no communication for it.
            "group_size": 32,
        },
        data=c.Data(
            source={"target": "tfdist.zoo.sources:tfds", "name": "cifar10", "download": False},
            prepare={
                "target": "tfdist.zoo.prepare:image",
                "pad": 4,
                "pad_mode": "reflect",
                "flip": True,
                "mean": (0.4914, 0.4822, 0.4465),
                "std": (0.2470, 0.2435, 0.2616),
            },
            batch_size=128,
            evaluation_batch_size=400,
        ),
        objective={"target": "tfdist.zoo.objectives:classification", "label_smoothing": 0.1},
        # Keras decays weights beside the momentum: 5e-3 is what 5e-4 in the loss would be.
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 5e-3},
        learning_rate=c.LearningRate(peak=0.1, schedule={"target": "tfdist.zoo.schedules:one_cycle", "peak_at": 0.2}),
        train=c.Train(epochs=20, precision="bfloat16"),
        checkpoint=c.Checkpoint(best_metric="accuracy"),
    )
