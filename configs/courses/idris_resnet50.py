"""IDRIS Jean Zay, MultiWorkerMirroredStrategy: ResNet50 on CIFAR-10, 64 images per GPU.

    srun python -m tfdist.main --config=configs/courses/idris_resnet50.py --config.data.batch_size=512    # 8 GPUs

| on the page | here |
|---|---|
| `batch_size_per_gpu = 64`, global batch 64 n | batch 64; on n GPUs `--config.data.batch_size` is 64 n |
| `SGD(0.001 * n_workers)`, no momentum | 0.001 x batch / 64 (`learning_rate.scaling="linear"`) |
| `SparseCategoricalCrossentropy(from_logits=True)`, accuracy | the same |
| `fit(epochs=10, steps_per_epoch=100)` | 1000 steps, a report and an evaluation after every 100 |
| shuffle, then batch; `drop_remainder=True`; seed 1234 | the same, with a seed for each epoch made of 1234 |
| `experimental_distribute_dataset` | `data.pipeline="textbook"` |

The page prints no results. Its code begins with a network for images of 28x28 pixels; its notebook trains
ResNet50 on CIFAR-10.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={
            "target": "tfdist.configs.networks.courses:application",
            "name": "ResNet50",
            "classes": 10,
            "input_shape": (32, 32, 3),
            "activation": None,
        },
        data=c.Data(
            source={"target": "tfdist.configs.networks.cifar:cifar", "path": "cifar-10-batches-py"},
            prepare={"target": "tfdist.configs.networks.courses:images"},
            batch_size=64,
            pipeline="textbook",
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "arguments": {"from_logits": True},
            "metrics": ["accuracy"],
        },
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.001, scaling="linear", reference_batch_size=64),
        train=c.Train(steps=1000),
        evaluation=c.Evaluation(every=c.Every(steps=100)),
        checkpoint=c.Checkpoint(every=c.Every(steps=100), best_metric="accuracy"),
        report=c.Report(every=c.Every(steps=100)),
        seed=1234,
    )
