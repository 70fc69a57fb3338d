"""The exercises of IDRIS' page on MultiWorkerMirroredStrategy: fit, a custom training loop, 1 to 8 GPUs.

Each of the first two is done twice: by the page's own lines, in docs/courses, and by tfdist.main with the same recipe.
"""

from tfdist.tools.course.task import Answer, Course, Reader, Task, cell, report

_CONFIG = "--config=configs/courses/idris_resnet50.py"
_CIFAR = f"{_CONFIG} --config.data.source.path=DATA"
_SMALL = (
    f"{_CONFIG} --config.data.source=\"{{'target': 'tfdist.zoo.sources:synthetic', 'num_examples': 128, "
    "'num_test_examples': 128}\" --config.learning_rate.reference_batch_size=16"
)
_MAIN = f"python -m tfdist.main {_CIFAR} --config.data.batch_size=64xREPLICAS"
_SMALL_MAIN = (
    f"python -m tfdist.main {_SMALL} --config.data.batch_size=16xREPLICAS --config.train.steps=8 "
    "--config.report.every.steps=4 --config.evaluation.every.steps=4 --config.checkpoint.every.steps=4 "
    "--config.cluster.logical_devices=2"
)
_FIT = "docs/courses/jean_zay_fit.py --replicas=1xREPLICAS"
_LOOP = "python docs/courses/jean_zay_loop.py"
_SHORT = "--batch=16 --images=128 --epochs=2 --steps=4"
_RANDOM = "128 random images instead of CIFAR-10, 2 epochs of 4 steps, 16 images for each replica."
_PRINTS_NOTHING = "not printed"


def _answers(name: str, loss: Reader, accuracy: Reader) -> tuple[Answer, ...]:
    """Returns the answers of the program `name`, then those of tfdist.main: readers of its loss and its accuracy."""
    rows = (
        (f"{name}: loss of the last epoch", loss),
        (f"{name}: accuracy on test", accuracy),
        ("tfdist.main: loss of the last epoch", report("loss", -1, folder="main")),
        ("tfdist.main: accuracy on test", report("accuracy", -1, "evaluation", folder="main")),
    )
    return tuple(Answer(quantity=quantity, page=_PRINTS_NOTHING, yours=yours) for quantity, yours in rows)


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
            page=(
                f"python -m tfdist.run --workdir=WORKDIR {_FIT} --data=DATA",
                f"{_MAIN} --workdir=WORKDIR/main",
            ),
            laptop=(
                f"python -m tfdist.launch --workers=2 -- -m tfdist.run --workdir=WORKDIR {_FIT} {_SHORT}",
                f"{_SMALL_MAIN} --workdir=WORKDIR/main",
            ),
            difference=f"{_RANDOM} Two workers, then two logical devices.",
            answers=_answers("fit", report("loss", -1, folder="fit1"), report("accuracy", -1, "evaluation", "fit1")),
            see="docs/scripts.md",
        ),
        Task(
            number="2",
            title="A custom training loop over experimental_distribute_dataset",
            asks="Shuffle, then batch; distribute the dataset; divide the loss by the global batch; sum over replicas.",
            page=(
                f"{_LOOP} --data=DATA --out=WORKDIR/loop.csv",
                f"{_MAIN} --workdir=WORKDIR/main",
            ),
            laptop=(
                f"{_LOOP} --replicas=2 {_SHORT} --out=WORKDIR/loop.csv",
                f"{_SMALL_MAIN} --workdir=WORKDIR/main",
            ),
            difference=f"{_RANDOM} Two logical devices.",
            answers=_answers("loop", cell("loop.csv", "loss"), cell("loop.csv", "test_accuracy")),
            see="docs/from-tf-distribute.md",
        ),
        Task(
            number="3",
            title="The notebook: 1, 2, 4 and 8 GPUs",
            asks="Train ResNet50 on CIFAR-10 with 1, 2, 4 and 8 GPUs, by tfdist and by the loop; compare the times.",
            page=(
                f"python -m tfdist scaling {_CIFAR} --replicas=1,2,4,8 --epochs=3 --workdir=WORKDIR",
                *(
                    f"srun --ntasks={n} {_LOOP} --replicas={n} --data=DATA --epochs=3 --out=WORKDIR/loop.csv"
                    for n in (1, 2, 4, 8)
                ),
            ),
            laptop=(
                f"python -m tfdist scaling {_SMALL} --config.data.batch_size=16 --replicas=1,2 --epochs=2 "
                "--workdir=WORKDIR",
                *(f"srun --ntasks={n} {_LOOP} --replicas={n} {_SHORT} --out=WORKDIR/loop.csv" for n in (1, 2)),
            ),
            difference=f"{_RANDOM} tfdist: two workers, epochs of 128 images. The loop: two logical devices.",
            answers=(
                Answer(
                    quantity="tfdist: images/s on one replica",
                    page=_PRINTS_NOTHING,
                    yours=cell("scaling.csv", "examples_per_second", ("replicas", "1")),
                ),
                Answer(
                    quantity="tfdist: speedup, most replicas",
                    page=_PRINTS_NOTHING,
                    yours=cell("scaling.csv", "speedup"),
                ),
                Answer(
                    quantity="the loop: images/s on one replica",
                    page=_PRINTS_NOTHING,
                    yours=cell("loop.csv", "images_per_second", ("replicas", "1")),
                ),
                Answer(
                    quantity="the loop: images/s, most replicas",
                    page=_PRINTS_NOTHING,
                    yours=cell("loop.csv", "images_per_second"),
                ),
            ),
            see="docs/studies.md",
        ),
    ),
)
