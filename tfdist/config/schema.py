"""The configuration of a run: every knob once, with its meaning. Imports no TensorFlow.

A config file holds a `get_config()` that returns a `Config`. Fields that are `dict`s name a function by
dotted path and give its keyword arguments, `dict(target="my_lab.losses:focal", gamma=2.0)`; `build` calls it.
Nothing here speaks of hardware: batch sizes are global and the replicas are discovered.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(slots=True, kw_only=True)
class Every:
    """How often something happens: at each multiple of either field; never where both are None."""

    # Optimizer steps.
    steps: int | None = None
    # Epochs; a fraction is rounded to the nearest whole step.
    epochs: float | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Data:
    """What is read, and how it becomes batches."""

    # source(split, **kw) -> Source: random access to a split's examples.
    source: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.sources:digits"})
    # prepare(batch, seeds, *, training, **kw) -> batch: stateless, batched preprocessing and augmentation.
    prepare: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.prepare:image"})
    # The splits in tfds' notation: "train", "train[:90%]", "train[45000:]".
    train_split: str = "train"
    # None: the run evaluates nothing.
    evaluation_split: str | None = "test"
    # Examples in one optimizer step, over all replicas.
    batch_size: int = 128
    # Examples in one evaluation step, over all replicas; None: the same as batch_size.
    evaluation_batch_size: int | None = None
    # False: every epoch takes the examples in the source's own order.
    shuffle: bool = True
    # "raw": each worker keeps what it reads of the source; "prepared": what `prepare` makes of it, where that is not
    # random; "none": nothing. All examples are read at the start, once. The run stays the same.
    cache: str = "none"
    # Where they are kept: a directory on a fast disk of each host (RAM disk, NVMe), as "$TMPDIR/examples", which jobs
    # may share; None: in host memory.
    cache_dir: str | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class LearningRate:
    """The learning rate as a function of the optimizer step."""

    # The highest learning rate, for a batch of `reference_batch_size` when `scaling` is not "none".
    peak: float = 0.1
    # schedule(peak, *, total_steps, warmup_steps, **kw) -> keras LearningRateSchedule.
    schedule: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.schedules:constant"})
    # "linear": peak x batch_size / reference_batch_size; "sqrt": the square root of that factor (arXiv 1706.02677).
    # With train.local_steps, batch_size / local_steps takes the place of batch_size.
    scaling: str = "none"
    reference_batch_size: int = 256
    # Epochs over which the rate rises linearly from near 0 to its peak (gradual warm-up, arXiv 1706.02677).
    warmup_epochs: float = 0.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Train:
    """How long to train, and the arithmetic of one step."""

    # The length of the run: exactly one of `epochs` and `steps`.
    epochs: float | None = None
    steps: int | None = None
    # "float32", "bfloat16" or "float16": the arithmetic; variables stay in float32. float16 scales the loss.
    precision: str = "float32"
    # Compile the forward and backward pass with XLA; not with synchronised normalisation. On CPUs it is slower.
    xla: bool = False
    # A replica's share of the batch is run in this many pieces, one after another: less memory, the same update.
    micro_batches: int = 1
    # Local SGD (arXiv 1805.09767), for slow networks: each replica takes so many optimizer steps by itself, each on a
    # piece of its share of the batch, then all average. A step is that whole round, and batch_size counts its examples.
    # Above 1, N replicas no longer make the run of one; the run still repeats and resumes bit for bit.
    local_steps: int = 1
    # Parameter servers (docs/consistency.md): each worker takes a whole batch, and its update waits for nobody. The
    # gradients are of weights that others change meanwhile: two runs differ, and none is "the same run" as another.
    asynchronous: bool = False
    # Upper bound of the global norm of the summed gradients; None: no clipping.
    clip_norm: float | None = None
    # After a loss or gradient that is not finite: "stop", "skip" the update, or "rollback" to the last checkpoint due.
    nonfinite: str = "stop"
    # The run ends all the same after so many updates left out, or so many ways back.
    nonfinite_limit: int = 10
    # Longest call into TensorFlow between two looks at signals and intervals, in seconds.
    call_seconds: float = 2.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Communication:
    """How gradients travel between replicas."""

    # The gradients travel in packs of about this many bytes, each as soon as its own are there; 0: all in one.
    bytes_per_pack: int = 8_000_000
    # "float32": as they are, float64 too; "bfloat16" or "float16": halved on the wire; weights and slots stay float32.
    dtype: str = "float32"


@dataclasses.dataclass(slots=True, kw_only=True)
class Evaluation:
    """When the evaluation split is evaluated; always once more at the end of the run."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))


@dataclasses.dataclass(slots=True, kw_only=True)
class Agreement:
    """When it is checked that all replicas hold the same state; always at a start, after a restore and at the end."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))


@dataclasses.dataclass(slots=True, kw_only=True)
class Checkpoint:
    """When the run is saved, and what is kept; always saved at the end of the run."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))
    # How many of the newest checkpoints are kept.
    keep: int = 3
    # The evaluation metric whose best checkpoint is kept besides; None: no best checkpoint.
    best_metric: str | None = None
    # Whether a larger ("max") or a smaller ("min") value of best_metric is better.
    best_mode: str = "max"
    # Write the final model to workdir/model.keras, which Keras alone can load.
    export: bool = True


@dataclasses.dataclass(slots=True, kw_only=True)
class Report:
    """What the run tells about itself."""

    every: Every = dataclasses.field(default_factory=lambda: Every(steps=100))
    # Write scalars to workdir/tensorboard.
    tensorboard: bool = True
    # There as well: the model's graph, at the start; histograms of the weights, so often (never by default); and a
    # profile of the steps from the first to the last of [first, last], counted from 1, on the chief.
    graph: bool = False
    histograms: Every = dataclasses.field(default_factory=Every)
    profile: list[int] | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Cluster:
    """How the workers find each other. Not part of a run's identity: it may differ when a run is resumed."""

    # Ports [port_base, port_base + port_count) are used; which of them, the job's own id decides.
    port_base: int = 10000
    port_count: int = 10000
    # Seconds that all workers have to find each other before the run gives up and names the missing ones.
    connect_seconds: float = 120.0
    # Seconds of silence after which a peer counts as lost.
    heartbeat_seconds: float = 10.0
    # Seconds in which a worker must finish a call, its first excepted, or the run ends; None: no limit.
    stall_seconds: float | None = 600.0
    # Seconds after its start by which a process must have saved and left; None: as long as Slurm lets it, if that says.
    time_limit_seconds: float | None = None
    # Put the job of Slurm back into the queue where it ran out of time or lost a worker (docs/slurm.md).
    requeue: bool = False
    # CPU devices per worker that each act as a replica, for tests on machines without GPUs.
    logical_devices: int = 1
    # The weights lie once, in host memory, and all replicas of this machine compute with them: CentralStorageStrategy.
    # For one worker; the same run as with a copy on each device, slower, but with less memory of the devices.
    central_storage: bool = False
    # malloc keeps freed memory for the next step, instead of handing it back to the kernel: faster sums over workers.
    keep_freed_memory: bool = True


@dataclasses.dataclass(slots=True, kw_only=True)
class Config:
    """A whole run."""

    # model(**kw) -> keras.Model.
    model: dict[str, Any]
    # adapt(model, read, **kw): sets weights from data before the first step; read(n) returns n prepared examples.
    adapt: dict[str, Any] | None = None
    data: Data = dataclasses.field(default_factory=Data)
    # objective(model, batch, *, training, **kw) -> {"loss": [n], ...}: one value per example.
    objective: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"target": "tfdist.zoo.objectives:classification"}
    )
    # optimizer(schedule, **kw) -> keras.optimizers.Optimizer.
    optimizer: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"target": "keras.optimizers:SGD", "momentum": 0.9}
    )
    learning_rate: LearningRate = dataclasses.field(default_factory=LearningRate)
    train: Train = dataclasses.field(default_factory=Train)
    communication: Communication = dataclasses.field(default_factory=Communication)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    agreement: Agreement = dataclasses.field(default_factory=Agreement)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    # Keras callbacks, one spec each: [{"target": "keras.callbacks:EarlyStopping", "monitor": "val_loss"}]. Their logs
    # hold the objective's values, and those of the evaluation as val_NAME.
    callbacks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    report: Report = dataclasses.field(default_factory=Report)
    cluster: Cluster = dataclasses.field(default_factory=Cluster)
    # Decides initial weights, order of examples, augmentation and dropout.
    seed: int = 0
