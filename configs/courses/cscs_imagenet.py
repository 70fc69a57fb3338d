"""CSCS Piz Daint course, laboratory 3: InceptionV3, ResNet50 or VGG16 of keras.applications on ImageNet.

    python -m tfdist.main --config=configs/courses/cscs_imagenet.py --config.data.source.path=/data/imagenet
    python -m tfdist.main --config=configs/courses/cscs_imagenet.py --config.model.name=VGG16 ...

| in the laboratory | here |
|---|---|
| whole images resized to 224x224, pixels 0 .. 255, no augmentation | the same |
| `weights=None, classes=1001` | the same; the labels are 0 .. 999, so one class is never seen |
| `SGD(lr=1e-4, momentum=.9)`, categorical cross-entropy | the same |
| 64 images a worker | batch 64 for one worker; on N workers `--config.data.batch_size` is 64 N |
| 2 epochs of 100 steps, rank 0 saves after each | 200 steps, a report and a checkpoint after every 100 |

The fourth laboratory's Estimators no longer exist in TensorFlow. Its networks are `--config.model.name=ResNet101` and
so on, its optimizer `--config.optimizer="{'target': 'keras.optimizers:Adagrad'}" --config.learning_rate.peak=0.1`. Not
run on ImageNet, which was not available: the same code was run on small images in that layout.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.configs.networks.courses:application",
            "name": "InceptionV3",
            "classes": 1001,
            "input_shape": (224, 224, 3),
        },
        data=c.Data(
            source={"target": "tfdist.configs.networks.imagenet:imagenet", "path": "imagenet"},
            prepare={"target": "tfdist.configs.networks.courses:images", "resize": (224, 224), "scale": 1.0},
            evaluation_split=None,
            batch_size=64,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(peak=1e-4),
        train=c.Train(steps=200),
        checkpoint=c.Checkpoint(every=c.Every(steps=100)),
        report=c.Report(every=c.Every(steps=100)),
    )
