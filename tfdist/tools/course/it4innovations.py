"""The exercises of the SCtrain course at IT4Innovations: AlexNet, a perceptron on several GPUs, caches, TensorBoard."""

from tfdist.tools.course.task import Answer, Course, Task, printed, report

_ALEXNET = "python -m tfdist.main --config=configs/courses/sctrain_alexnet.py --config.report.summary=true"
_RANDOM_IMAGES = (
    "--config.data.source=\"{'target': 'tfdist.zoo.sources:synthetic', 'shape': (256, 256, 3), 'num_examples': 8}\" "
    "--config.data.prepare=\"{'target': 'tfdist.zoo.courses:images'}\" --config.data.evaluation_split=none "
    "--config.data.batch_size=4 --config.train.epochs=none --config.train.steps=1 --config.checkpoint.export=false "
    "--config.checkpoint.best_metric=none --workdir=WORKDIR"
)
_CONFIG = "--config=configs/courses/sctrain_mlp.py"
_DIGITS = (
    "--config.data.source=\"{'target': 'tfdist.zoo.sources:digits'}\" --config.data.prepare=\"{'target': "
    "'tfdist.zoo.courses:images', 'resize': (28, 28), 'scale': 0.0625}\" --config.data.evaluation_batch_size=100"
)
# Each worker has its own examples, and 32 of them in a step.
_DIVIDED = "--config.data.batch_size=32xREPLICAS --config.data.shards=fixed"
_TWO_WORKERS = f"python -m tfdist.launch --workers=2 -- {_CONFIG} {_DIGITS} {_DIVIDED}"
_INSTEAD = "1,442 digits that tfdist contains, enlarged to 28x28 pixels, instead of MNIST; two workers on this machine."
_ANSWERS = (
    Answer(quantity="parameters", page="101,770", yours=printed(r"([\d,]+) parameters")),
    Answer(quantity="accuracy on test", page="not printed", yours=report("accuracy", -1, "evaluation")),
)

COURSE = Course(
    name="it4innovations",
    centre="sctrain",
    title="Distributed deep learning, SCtrain at IT4Innovations",
    data="mnist.npz, for AlexNet the folder cifar-10-batches-py",
    tasks=(
        Task(
            number="alexnet",
            title="AlexNet, sequential and functional",
            asks="Write AlexNet for 256x256 pixels with Keras' sequential and functional API, and print its summary.",
            page=(f"{_ALEXNET} --config.model.form=functional --config.data.source.path=DATA --workdir=WORKDIR",),
            laptop=(f"{_ALEXNET} --config.model.form=functional {_RANDOM_IMAGES}",),
            difference="one step on 4 random images of 256x256 pixels.",
            answers=(
                Answer(
                    quantity="parameters, 10 classes",
                    page="70,086,218",
                    yours=printed(r"courses:alexnet, ([\d,]+) parameters"),
                ),
            ),
            hardware="counted from the page's code",
        ),
        Task(
            number="mlp",
            title="The perceptron on MNIST with several GPUs",
            asks="Divide the examples among the workers, shuffle them, and train with batches of 32 for each worker.",
            page=(f"python -m tfdist.main {_CONFIG} --config.data.source.path=DATA {_DIVIDED} --workdir=WORKDIR",),
            laptop=(f"{_TWO_WORKERS} --workdir=WORKDIR",),
            difference=_INSTEAD,
            answers=_ANSWERS,
            hardware="counted from the page's code",
            see="docs/it4innovations.md",
        ),
        Task(
            number="cache",
            title="Each worker's shard in a cache of its own",
            asks="Cache the shard of each worker on a RAM disk or NVMe.",
            page=(
                f"python -m tfdist.main {_CONFIG} --config.data.source.path=DATA {_DIVIDED} "
                "--config.data.cache=raw --config.data.cache_dir=WORKDIR/cache --workdir=WORKDIR",
            ),
            laptop=(f"{_TWO_WORKERS} --config.data.cache=raw --config.data.cache_dir=WORKDIR/cache --workdir=WORKDIR",),
            difference=_INSTEAD,
            answers=_ANSWERS,
            hardware="counted from the page's code",
            see="docs/pipelines.md",
        ),
        Task(
            number="tensorboard",
            title="TensorBoard: losses, graph and histograms",
            asks="Write logs with graph and histograms, then open them: tensorboard --logdir with the workdir below.",
            page=(
                f"python -m tfdist.main {_CONFIG} --config.data.source.path=DATA --config.report.graph=true "
                "--config.report.histograms.epochs=1 --workdir=WORKDIR",
            ),
            laptop=(
                f"python -m tfdist.main {_CONFIG} {_DIGITS} --config.report.graph=true "
                "--config.report.histograms.epochs=1 --workdir=WORKDIR",
            ),
            difference="1,442 digits that tfdist contains, enlarged to 28x28 pixels, instead of MNIST.",
            answers=_ANSWERS,
            hardware="counted from the page's code",
            see="docs/it4innovations.md",
        ),
    ),
)
