"""The exercises of IDRIS' page on MultiWorkerMirroredStrategy: fit, a custom training loop, 1 to 8 GPUs."""

from tfdist.tools.course.task import Answer, Course, Task, cell, report

_CONFIG = "--config=configs/courses/idris_resnet50.py"
_CIFAR = f"{_CONFIG} --config.data.source.path=DATA"
_SMALL = (
    f"{_CONFIG} --config.data.source=\"{{'target': 'tfdist.zoo.sources:synthetic', 'num_examples': 128, "
    "'num_test_examples': 64}\""
)
_SHORT = (
    "--config.data.batch_size=32 --config.learning_rate.reference_batch_size=16 --config.train.steps=8 "
    "--config.report.every.steps=4 --config.evaluation.every.steps=4 --config.checkpoint.every.steps=4 "
    "--config.cluster.logical_devices=2"
)
_RANDOM = (
    "128 random images instead of CIFAR-10, 8 steps of 32 on two logical devices (in an allocation: on its tasks)."
)
_PRINTS_NOTHING = "not printed"
_ANSWERS = (
    Answer(quantity="loss at the end", page=_PRINTS_NOTHING, yours=report("loss", -1)),
    Answer(quantity="accuracy on test", page=_PRINTS_NOTHING, yours=report("accuracy", -1, "evaluation")),
)

COURSE = Course(
    name="jean_zay",
    centre="idris",
    title="TensorFlow: distributed training with MultiWorkerMirroredStrategy, IDRIS Jean Zay",
    data="the folder cifar-10-batches-py, such as $DSDIR/cifar-10-batches-py",
    tasks=(
        Task(
            number="1",
            title="Model.fit on two nodes of four GPUs",
            asks="Train with 64 images for each GPU, SGD(0.001 x workers), 10 epochs of 100 steps; evaluate on all.",
            page=(f"python -m tfdist.main {_CIFAR} --config.data.batch_size=512 --workdir=WORKDIR",),
            laptop=(f"python -m tfdist.main {_SMALL} {_SHORT} --workdir=WORKDIR",),
            difference=_RANDOM,
            answers=_ANSWERS,
            see="docs/jean_zay.md",
        ),
        Task(
            number="2",
            title="A custom training loop over experimental_distribute_dataset",
            asks="Shuffle, then batch; distribute the dataset; divide the loss by the global batch; sum over replicas.",
            page=(
                f"python -m tfdist.main {_CIFAR} --config.data.batch_size=512 --config.data.pipeline=textbook "
                "--workdir=WORKDIR",
            ),
            laptop=(f"python -m tfdist.main {_SMALL} {_SHORT} --config.data.pipeline=textbook --workdir=WORKDIR",),
            difference=_RANDOM,
            answers=_ANSWERS,
            see="docs/pipelines.md",
        ),
        Task(
            number="3",
            title="The notebook: 1, 2, 4 and 8 GPUs",
            asks="Train ResNet50 on CIFAR-10 with 1, 2, 4 and 8 GPUs, and compare the times.",
            page=(f"python -m tfdist scaling {_CIFAR} --replicas=1,2,4,8 --epochs=3 --workdir=WORKDIR",),
            laptop=(
                f"python -m tfdist scaling {_SMALL} --config.data.batch_size=16 --replicas=1,2 --epochs=2 "
                "--workdir=WORKDIR",
            ),
            difference="128 random images instead of CIFAR-10, two workers, two epochs.",
            answers=(
                Answer(
                    quantity="epoch on one replica, s",
                    page=_PRINTS_NOTHING,
                    yours=cell("scaling.csv", "epoch_seconds", ("replicas", "1")),
                ),
                Answer(quantity="speedup, most replicas", page=_PRINTS_NOTHING, yours=cell("scaling.csv", "speedup")),
            ),
            see="docs/notebooks.md",
        ),
    ),
)
