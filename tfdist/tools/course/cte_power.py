"""The tasks of the BSC CTE-POWER course (J. Torres): MNIST, then ResNet50V2 and ResNet152V2 on CIFAR-10."""

from tfdist.tools.course.task import Answer, Course, Task, cell, printed, report

_DIGITS = (
    "--config.data.source=\"{'target': 'tfdist.zoo.sources:digits'}\" --config.data.prepare=\"{'target': "
    "'tfdist.zoo.courses:images', 'resize': (28, 28), 'scale': 0.0625}\" --config.data.batch_size=10"
)
# The programs of the page that are one process: one task of an allocation.
_ALONE = "srun --ntasks=1 python -m tfdist.main"
_MNIST = f"{_ALONE} --config=configs/courses/bsc_mnist.py"
_CONFIG = "--config=configs/courses/bsc_resnet50v2.py"
_CIFAR = f"{_CONFIG} --config.data.source.path=DATA"
# 128 random images of 32x32 pixels, so that a laptop takes a minute for what takes a V100 a minute.
_SMALL = (
    f"{_CONFIG} --config.data.source=\"{{'target': 'tfdist.zoo.sources:synthetic', 'num_examples': 128}}\" "
    "--config.data.prepare=\"{'target': 'tfdist.zoo.courses:images'}\" --config.model.input_shape=[32,32,3] "
    "--config.data.batch_size=16 --config.learning_rate.reference_batch_size=16"
)
_MANY = _SMALL.replace("'num_examples': 128", "'num_examples': 50_000")
_RESNET152 = "--config.model.name=ResNet152V2"
_RANDOM = "128 random images of 32x32 pixels instead of CIFAR-10: times and accuracy are not those of the page."
_ONE_GPU = f"{_CIFAR} --config.cluster.gpus=1"
_V100 = "NVIDIA V100 GPUs of 16 GB, one node of CTE-POWER, TensorFlow 2"
_FIVE_MINUTES = "--config.cluster.gpus=0 --job_minutes=5 --workdir=WORKDIR"
_ONE_MINUTE = "--config.cluster.time_limit_seconds=60"
_JOB = (
    "sbatch --wait --no-requeue --nodes=1 --ntasks-per-node=1 --gres=none --cpus-per-task=160 --time=5 "
    "--output=WORKDIR/job.log launch/slurm/cte_power.sbatch srun python -m tfdist.main"
)
_STUDY = "python -m tfdist scaling"
_GHOST = "--published=bsc_resnet50v2 --workdir=WORKDIR"


def _finding(check: str) -> str:
    """Returns a pattern for what the doctor finds in a check."""
    return rf"^{check} +(?:ok|look|BAD) +(.*)$"


def _scaling_answers(file: str = "scaling.csv") -> tuple[Answer, ...]:
    found = []
    rows = (("1", "49", "45", "0.5070"), ("2", "26", "24", "0.5049"), ("4", "14", "12", "0.5010"))
    for replicas, first, later, accuracy in rows:
        row, gpus = ("replicas", replicas), f"{replicas} GPU{'s' * (replicas != '1')}"
        found += [
            Answer(
                quantity=f"{gpus}: first epoch, s",
                page=first,
                yours=cell(file, "first_epoch_seconds", row),
            ),
            Answer(
                quantity=f"{gpus}: later epoch, s",
                page=later,
                yours=cell(file, "epoch_seconds", row),
            ),
            Answer(
                quantity=f"{gpus}: accuracy at the end",
                page=accuracy,
                yours=cell(file, "accuracy", row),
            ),
        ]
    for replicas, speedup in (("2", "45/24 = 1.88"), ("4", "45/12 = 3.75")):
        yours = cell(file, "speedup", ("replicas", replicas))
        found.append(Answer(quantity=f"{replicas} GPUs: speedup", page=speedup, yours=yours))
    return tuple(found)


_MNIST_ANSWERS = (
    Answer(quantity="parameters", page="62,346", yours=printed(r"([\d,]+) parameters")),
    Answer(quantity="loss in epoch 1", page="0.9553", yours=report("loss", 0)),
    Answer(quantity="loss in epoch 2", page="0.2631", yours=report("loss", 1)),
    Answer(quantity="loss in epoch 3", page="0.1904", yours=report("loss", 2)),
    Answer(quantity="accuracy in epoch 1", page="0.7612", yours=report("accuracy", 0)),
    Answer(quantity="accuracy in epoch 3", page="0.9446", yours=report("accuracy", 2)),
    Answer(quantity="accuracy on test", page="0.9671", yours=report("accuracy", -1, "evaluation")),
)
_EPOCHS = (
    Answer(quantity="parameters", page="not printed", yours=printed(r"([\d,]+) parameters")),
    Answer(quantity="seconds in epoch 1", page="49", yours=report("seconds", 0)),
    Answer(quantity="seconds in epoch 2", page="45", yours=report("seconds", 1)),
    Answer(quantity="accuracy in epoch 1", page="0.2506", yours=report("accuracy", 0)),
    Answer(quantity="accuracy in epoch 2", page="0.3536", yours=report("accuracy", 1)),
    Answer(quantity="accuracy in epoch 5", page="0.5070", yours=report("accuracy", 4)),
)

COURSE = Course(
    name="cte_power",
    centre="bsc",
    title="Deep learning on supercomputers, BSC CTE-POWER (J. Torres)",
    data="mnist.npz for tasks 2 and 3, the folder cifar-10-batches-py for the others",
    tasks=(
        Task(
            number="1",
            title="Look at the node",
            asks="Log in to the cluster, and look at the GPUs and the memory of a node.",
            page=("python -m tfdist doctor --config=configs/digits.py --workdir=WORKDIR",),
            answers=(
                Answer(quantity="GPUs", page="4 V100 of 16 GB", yours=printed(_finding("GPUs"))),
                Answer(quantity="memory", page="512 GB", yours=printed(r"of ([\d,]+ MiB free) per replica")),
            ),
            hardware="a node of CTE-POWER",
            see="docs/before-the-job.md",
        ),
        Task(
            number="2",
            title="The MNIST network",
            asks="Train the network with two convolutions for five epochs, and evaluate it on the test images.",
            page=(f"{_MNIST} --config.data.source.path=DATA --workdir=WORKDIR",),
            laptop=(f"{_MNIST} {_DIGITS} --workdir=WORKDIR",),
            difference="1,442 digits that tfdist contains, enlarged to 28x28, in batches of 10, instead of MNIST.",
            answers=_MNIST_ANSWERS,
            hardware="a login node of CTE-POWER",
        ),
        Task(
            number="3",
            title="The MNIST network as a batch job with one GPU",
            asks="Submit the training, look at the queue (squeue --me, in another terminal), and read the output.",
            page=(
                "sbatch --wait --nodes=1 --ntasks-per-node=1 --gres=gpu:1 --cpus-per-task=40 --time=10 "
                "--output=WORKDIR/job.log launch/slurm/cte_power.sbatch --config=configs/courses/bsc_mnist.py "
                "--config.data.source.path=DATA --workdir=WORKDIR",
                "cat WORKDIR/job.log",
            ),
            laptop=(
                f"python -m tfdist.launch --workers=1 -- --config=configs/courses/bsc_mnist.py {_DIGITS} "
                "--workdir=WORKDIR",
            ),
            difference="one worker, started by tfdist.launch, instead of a job; the digits of task 2 instead of MNIST.",
            answers=_MNIST_ANSWERS,
            hardware="one NVIDIA V100 of CTE-POWER",
            see="docs/slurm.md",
        ),
        Task(
            number="4",
            title="ResNet50V2 and ResNet152V2",
            asks="Look at the two networks: how do they differ?",
            page=(
                "python -m tfdist models --names=ResNet50V2,ResNet152V2 --image_size=128 --num_classes=10 "
                "--workdir=WORKDIR",
            ),
            laptop=(
                "python -m tfdist models --names=ResNet50V2,ResNet152V2 --image_size=128 --num_classes=10 --nomeasure "
                "--workdir=WORKDIR",
            ),
            difference="parameters and operations are counted; no step is measured.",
            answers=tuple(
                Answer(
                    quantity=f"parameters of {name}",
                    page="not printed",
                    yours=cell("models.csv", "parameters", ("network", name)),
                )
                for name in ("ResNet50V2", "ResNet152V2")
            ),
        ),
        Task(
            number="5",
            title="ResNet50V2 without a GPU, in five minutes",
            asks=(
                "Submit the training without a GPU, with a time limit of five minutes, and see what happens. Here the "
                "doctor estimates the time, the job saves before its end, and the same command resumes."
            ),
            page=(
                f"srun --ntasks=1 python -m tfdist doctor {_CIFAR} {_FIVE_MINUTES}",
                *2 * (f"{_JOB} {_CIFAR} --config.cluster.gpus=0 --workdir=WORKDIR", "cat WORKDIR/job.log"),
            ),
            laptop=(
                f"python -m tfdist doctor {_MANY} {_FIVE_MINUTES}",
                *2 * (f"{_ALONE} {_MANY} --config.cluster.gpus=0 {_ONE_MINUTE} --workdir=WORKDIR",),
            ),
            difference="50,000 random images of 32x32 pixels, 16 in a step; one minute instead of five, and no job.",
            exit_codes=(0, 75),
            answers=(
                Answer(
                    quantity="five minutes are enough",
                    page="no",
                    yours=printed(_finding("time")),
                ),
                Answer(
                    quantity="at the time limit",
                    page="CANCELLED DUE TO TIME LIMIT",
                    yours=printed(r"^(stopped by .* and saved at step \d+)"),
                ),
                Answer(
                    quantity="the same command again starts",
                    page="not printed",
                    yours=printed(r"\bresumed (after step \d+)"),
                ),
            ),
            hardware="the processors of a node of CTE-POWER, 160 threads",
            see="docs/before-the-job.md",
        ),
        Task(
            number="6",
            title="ResNet50V2 with one GPU",
            asks="Train the same network on one GPU: the time of an epoch falls.",
            page=(f"{_ALONE} {_ONE_GPU} --workdir=WORKDIR",),
            laptop=(f"{_ALONE} {_SMALL} --config.train.epochs=2 --workdir=WORKDIR",),
            difference=f"two epochs; {_RANDOM}",
            answers=_EPOCHS,
            hardware=_V100,
        ),
        Task(
            number="A",
            title="More epochs",
            asks="Train for more epochs, with a longer time limit, and see whether the accuracy still rises.",
            page=(
                f"{_ALONE} {_ONE_GPU} --config.train.epochs=20 --workdir=WORKDIR",
                "python -m tfdist plot WORKDIR",
            ),
            laptop=(
                f"{_ALONE} {_SMALL} --config.train.epochs=4 --workdir=WORKDIR",
                "python -m tfdist plot WORKDIR",
            ),
            difference=f"four epochs; {_RANDOM}",
            answers=(Answer(quantity="accuracy at the end", page="not printed", yours=report("accuracy", -1)),),
        ),
        Task(
            number="B",
            title="ResNet50V2 against ResNet152V2",
            asks="Compare the accuracy and the time of an epoch of the two networks.",
            page=(
                f"{_ALONE} {_ONE_GPU} --workdir=WORKDIR/ResNet50V2",
                f"{_ALONE} {_ONE_GPU} {_RESNET152} --workdir=WORKDIR/ResNet152V2",
                "python -m tfdist plot WORKDIR/ResNet50V2 WORKDIR/ResNet152V2 --out=WORKDIR/both",
            ),
            laptop=(
                f"{_ALONE} {_SMALL} --config.train.epochs=2 --workdir=WORKDIR/ResNet50V2",
                f"{_ALONE} {_SMALL} {_RESNET152} --config.train.epochs=2 --workdir=WORKDIR/ResNet152V2",
                "python -m tfdist plot WORKDIR/ResNet50V2 WORKDIR/ResNet152V2 --out=WORKDIR/both",
            ),
            difference=f"two epochs; {_RANDOM}",
            answers=tuple(
                Answer(quantity=f"{name}: {words}", page="not printed", yours=report(value, -1, folder=name))
                for name in ("ResNet50V2", "ResNet152V2")
                for words, value in (("last epoch, s", "seconds"), ("accuracy", "accuracy"))
            ),
        ),
        Task(
            number="7",
            title="ResNet50V2 on 1, 2 and 4 GPUs",
            asks="Train with 256 images and a learning rate of 0.01 for each GPU; compare times and accuracy.",
            page=(f"{_STUDY} {_CIFAR} --replicas=1,2,4 --epochs=5 {_GHOST}",),
            laptop=(f"{_STUDY} {_SMALL} --replicas=1,2 --epochs=2 {_GHOST}",),
            difference=f"two workers, two epochs, 16 images for each worker; {_RANDOM}",
            answers=_scaling_answers(),
            hardware=_V100,
            see="docs/studies.md",
        ),
        Task(
            number="C",
            title="The three plots for ResNet50V2",
            asks="Draw the time of an epoch, the images per second and the speedup of task 7. Run task 7 first.",
            page=("python -m tfdist plot RUNS/7 --published=bsc_resnet50v2 --out=WORKDIR/scaling",),
            difference="the results of task 7 on random images.",
            answers=_scaling_answers("../7/scaling.csv"),
            hardware=_V100,
        ),
        Task(
            number="D",
            title="ResNet152V2",
            asks="Change the program so that it trains ResNet152V2.",
            page=(f"{_ALONE} {_ONE_GPU} {_RESNET152} --workdir=WORKDIR",),
            laptop=(f"{_ALONE} {_SMALL} {_RESNET152} --config.train.epochs=1 --workdir=WORKDIR",),
            difference=f"one epoch; {_RANDOM}",
            answers=(Answer(quantity="parameters", page="not printed", yours=printed(r"([\d,]+) parameters")),),
        ),
        Task(
            number="E",
            title="The largest batch of ResNet152V2",
            asks="Find the largest batch, a power of two, that fits into the memory of a GPU.",
            page=(
                f"srun --ntasks=1 python -m tfdist batch_size {_ONE_GPU} {_RESNET152} --by=devices --powers_of_two "
                "--workdir=WORKDIR",
            ),
            laptop=(
                f"srun --ntasks=1 python -m tfdist batch_size {_SMALL} --by=devices --powers_of_two --largest=32 "
                "--memory_mb=4000 --workdir=WORKDIR",
            ),
            difference=f"ResNet50V2, at most 32 images and 4 GB of memory; {_RANDOM}",
            answers=(
                Answer(
                    quantity="largest batch of one GPU",
                    page="256 for ResNet50V2",
                    yours=printed(r"fits: (\d+) per replica"),
                ),
            ),
            hardware="a V100 of 16 GB",
            see="docs/studies.md",
        ),
        Task(
            number="F",
            title="ResNet152V2 on 1, 2 and 4 GPUs",
            asks="Repeat task 7 with ResNet152V2.",
            page=(f"{_STUDY} {_CIFAR} {_RESNET152} --replicas=1,2,4 --epochs=5 --workdir=WORKDIR",),
            laptop=(f"{_STUDY} {_SMALL} {_RESNET152} --replicas=1,2 --epochs=2 --workdir=WORKDIR",),
            difference=f"two workers, two epochs, 16 images for each worker; {_RANDOM}",
            answers=(
                Answer(quantity="speedup, most replicas", page="not printed", yours=cell("scaling.csv", "speedup")),
            ),
        ),
        Task(
            number="G",
            title="Both networks in one picture",
            asks="Draw the results of tasks 7 and F together: why is the speedup of ResNet152V2 not linear?",
            page=("python -m tfdist plot RUNS/7 RUNS/F --published=bsc_resnet50v2 --out=WORKDIR/scaling",),
            difference="the results of tasks 7 and F on random images.",
            answers=(
                Answer(
                    quantity="speedup of ResNet50V2, most GPUs",
                    page="3.75 on 4 GPUs",
                    yours=cell("../7/scaling.csv", "speedup"),
                ),
                Answer(
                    quantity="speedup of ResNet152V2, most GPUs",
                    page="not linear",
                    yours=cell("../F/scaling.csv", "speedup"),
                ),
            ),
            hardware=_V100,
            see="docs/studies.md",
        ),
    ),
)
