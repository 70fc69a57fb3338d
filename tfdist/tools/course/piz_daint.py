"""The laboratories of the CSCS Piz Daint course: gradient descent, its workers, networks of keras.applications."""

from tfdist.tools.course.task import Answer, Course, Task, cell, printed, report

_LINE = "python -m tfdist trajectories --config=configs/courses/cscs_line.py"
_CONFIG = "--config=configs/courses/cscs_imagenet.py"
_IMAGENET = f"{_CONFIG} --config.data.source.path=DATA"
# Random images of the smallest size that InceptionV3 takes.
_SMALL = (
    f"{_CONFIG} --config.data.source=\"{{'target': 'tfdist.zoo.sources:synthetic', 'num_examples': 32}}\" "
    "--config.data.prepare=\"{'target': 'tfdist.zoo.courses:images', 'resize': (75, 75), 'scale': 1.0}\" "
    "--config.model.input_shape=[75,75,3] --config.checkpoint.export=false"
)
_FOUR_STEPS = "--config.data.batch_size=8xREPLICAS --config.train.steps=4"
_RANDOM = "random images of 75x75 pixels instead of ImageNet, 8 for a worker, 4 steps."
# The rate of each worker is 0.1.
_ADAGRAD = (
    "--config.model.name=ResNet101 --config.optimizer=\"{'target': 'keras.optimizers:Adagrad'}\" "
    "--config.learning_rate.peak=0.1 --config.learning_rate.scaling=linear"
)
_RING = "python -m tfdist all_reduce --ring --config=configs/digits.py --largest_mb=4 --workdir=WORKDIR"
_SYNTHETIC = (
    f"{_CONFIG} --config.data.source=\"{{'target': 'tfdist.zoo.sources:synthetic', 'shape': (224, 224, 3), "
    "'num_classes': 1001, 'num_examples': 12800}\" --config.data.prepare=\"{'target': 'tfdist.zoo.courses:images', "
    "'scale': 1.0}\""
)

COURSE = Course(
    name="piz_daint",
    centre="cscs",
    title="TensorFlow with Horovod, CSCS Piz Daint",
    data="a folder of ImageNet's TFRecord files",
    tasks=(
        Task(
            number="1",
            title="Gradient descent on a line",
            asks="Fit y = m x + n to 1000 points, draw the trajectory over the loss, and try other batch sizes.",
            page=(f"{_LINE} --batches=1,100,1000 --replicas=1 --by=devices --workdir=WORKDIR",),
            answers=(
                Answer(quantity="slope of the line", page="2 (true)", yours=cell("trajectories.csv", "m")),
                Answer(quantity="offset of the line", page="0 (true)", yours=cell("trajectories.csv", "n")),
            ),
            hardware="any",
            see="docs/studies.md",
        ),
        Task(
            number="2",
            title="The line on two workers, Horovod's parts added one by one",
            asks="Save the trajectories of both workers, and draw them before and after each change.",
            page=(f"{_LINE} --stages --workdir=WORKDIR",),
            answers=(
                Answer(quantity="slope of the line", page="2 (true)", yours=cell("stages.csv", "slope")),
                Answer(quantity="offset of the line", page="0 (true)", yours=cell("stages.csv", "intercept")),
            ),
            hardware="two nodes (the results are the same on any)",
            see="docs/studies.md",
        ),
        Task(
            number="ring",
            title="The ring all-reduce, message by message",
            asks="Follow the chunks around the ring: N-1 steps to sum them, N-1 to pass the sums on.",
            page=(_RING,),
            laptop=(f"{_RING} --config.cluster.logical_devices=4",),
            difference="four logical devices of one process instead of workers.",
            answers=(
                Answer(quantity="messages of a replica", page="2(N-1)", yours=printed(r"ring: (\d+) messages")),
                Answer(
                    quantity="sent by a replica, x ArraySize",
                    page="2(N-1)/N",
                    yours=printed(r"messages of a replica, ([\d.]+) x"),
                ),
            ),
            hardware="any",
            see="docs/before-the-job.md",
        ),
        Task(
            number="3",
            title="Networks of keras.applications on ImageNet",
            asks="Train InceptionV3, ResNet50 or VGG16 on one node, then on two with Horovod; 2 epochs of 100 steps.",
            page=(
                f"srun --ntasks=1 python -m tfdist.main {_IMAGENET} --config.cluster.gpus=1 --workdir=WORKDIR/one",
                f"python -m tfdist.main {_IMAGENET} --config.data.batch_size=64xREPLICAS --workdir=WORKDIR/two",
            ),
            laptop=(
                f"srun --ntasks=1 python -m tfdist.main {_SMALL} {_FOUR_STEPS} --workdir=WORKDIR/one",
                f"python -m tfdist.main {_SMALL} {_FOUR_STEPS} --config.cluster.logical_devices=2 "
                "--workdir=WORKDIR/two",
            ),
            difference=_RANDOM,
            answers=(
                Answer(quantity="one worker: loss", page="not printed", yours=report("loss", -1, folder="one")),
                Answer(quantity="two workers: loss", page="not printed", yours=report("loss", -1, folder="two")),
            ),
        ),
        Task(
            number="4",
            title="The same with Estimators: ResNet101 and Adagrad",
            asks="Train ResNet101 with Adagrad(0.1 x workers) for 100 steps. TensorFlow no longer has Estimators.",
            page=(
                f"python -m tfdist.main {_IMAGENET} {_ADAGRAD} --config.learning_rate.reference_batch_size=64 "
                "--config.data.batch_size=64xREPLICAS --config.train.steps=100 --workdir=WORKDIR",
            ),
            laptop=(
                f"python -m tfdist.main {_SMALL} {_ADAGRAD} --config.learning_rate.reference_batch_size=8 "
                f"{_FOUR_STEPS} --workdir=WORKDIR",
            ),
            difference=_RANDOM,
            answers=(Answer(quantity="loss at the end", page="not printed", yours=report("loss", -1)),),
        ),
        Task(
            number="figure",
            title="Images per second of a network on more and more nodes",
            asks="Measure the throughput on 1 to 8 nodes. The page's figure has no numbers; a report of CSCS has them.",
            page=(
                f"python -m tfdist scaling {_SYNTHETIC} --replicas=1,2,4,8 --published=cscs_inceptionv3 "
                "--workdir=WORKDIR",
            ),
            laptop=(
                f"python -m tfdist scaling {_SMALL} --config.data.batch_size=8 --replicas=1,2 --epochs=2 "
                "--published=cscs_inceptionv3 --workdir=WORKDIR",
            ),
            difference="32 random images of 75x75 pixels, 8 for each of two workers.",
            answers=tuple(
                Answer(
                    quantity=f"images/s, nodes: {nodes}",
                    page=f"{rate:.4g}",
                    yours=cell("scaling.csv", "examples_per_second", ("replicas", nodes)),
                )
                for nodes, rate in (("1", 138.23), ("2", 264.57), ("4", 523.38), ("8", 1018.18))
            ),
            hardware="nodes of Piz Daint with one P100 each, TensorFlow 1.1 with parameter servers, random images",
            source="CSCS report, 2017",
        ),
    ),
)
