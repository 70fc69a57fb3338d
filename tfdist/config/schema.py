"""The configuration of a run: every field with its meaning, unit, default and allowed values. Imports no TensorFlow.

A config file defines `get_config()`, which returns a `Config`, or an `ml_collections.ConfigDict` with the same names.
A field of type `dict` is a spec: it names a function by dotted path and gives its keyword arguments, such as
`{"target": "my_lab.losses:focal", "gamma": 2.0}`. The arguments are numbers, strings, True, False, None, and lists and
dicts of these, so that they can be saved and compared. The config does not describe the machines: batch sizes are
global, and the replicas are detected.
"""

import dataclasses
from typing import Any, Literal

# A value of `learning_rate.schedule` that makes the learning rate a variable, which callbacks can set.
SETTABLE_SCHEDULE = "tfdist.zoo.schedules:settable"


def default_optimizer() -> dict[str, Any]:
    """Returns the spec of the default optimizer."""
    return {"target": "keras.optimizers:SGD", "momentum": 0.9, "learning_rate": 0.1}


@dataclasses.dataclass(slots=True, kw_only=True)
class Every:
    """When something is due: at each multiple of `steps` and of `epochs`, and after each epoch listed in `after`."""

    steps: int | None = None
    """Optimizer steps, at least 1."""
    epochs: float | None = None
    """Epochs, above 0; fractions are rounded to the nearest whole step."""
    after: list[int] | None = None
    """Numbers of epochs, from 1 on, such as [1, 5, 20]."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Data:
    """The dataset, its preprocessing and the batches."""

    source: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.sources:digits"})
    """source(split, **kw) -> Source: random access to the examples of a split. tfdist.zoo.sources has some."""
    prepare: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.prepare:image"})
    """prepare(batch, seeds, *, training, **kw) -> batch: stateless preprocessing and augmentation of a batch. All
    randomness comes from `seeds`, int64 [n, 2], one row per example and epoch."""
    finish: dict[str, Any] | None = None
    """finish(batch, *, training, **kw) -> batch: the last part of preprocessing, on the device and without randomness.
    Batches are copied to the device with the types that `prepare` returns, such as uint8. None: `prepare` does
    everything."""
    train_split: str = "train"
    """The training split, in the notation of TensorFlow Datasets: "train", "train[:90%]", "train[45000:]"."""
    evaluation_split: str | None = "test"
    """The evaluation split, in the same notation. None: no evaluation."""
    batch_size: int = 128
    """Global batch size: examples per step over all replicas, a multiple of replicas x micro_batches."""
    evaluation_batch_size: int | None = None
    """Examples per evaluation step over all replicas, rounded up to a multiple of the number of replicas, or of
    virtual_replicas. None: batch_size."""
    shuffle: bool = True
    """True: a new random order in every epoch. False: the order of the source."""
    pipeline: Literal["stream", "textbook"] = "stream"
    """Input pipeline. "stream": random access to examples; each worker reads its shard of each batch. "textbook":
    Dataset.shuffle, batch and strategy.experimental_distribute_dataset (docs/consistency.md)."""
    shuffle_buffer: int | None = None
    """Textbook pipeline: examples in the buffer of Dataset.shuffle, at least 1. None: all."""
    shards: Literal["batch", "fixed", "contiguous"] = "batch"
    """Which examples each of the W workers reads. "batch": its shard of each batch, which may contain any example.
    "fixed": worker i mod W always reads example i, so a cache needs 1/W of the space. "contiguous": each worker reads a
    range of consecutive examples, so it opens only the files that contain them. With "fixed" and "contiguous" the
    result depends on the number of workers; runs on the same number of workers repeat and resume bit for bit."""
    cache: Literal["none", "raw"] = "none"
    """Cache of the examples: "none"; "raw": the examples as read from the source. The first read fills the cache with
    the whole split. A cache does not change the results."""
    cache_dir: str | None = None
    """Directory of the cache, on a local disk of each host (RAM disk, NVMe), such as "$TMPDIR/examples". Jobs of one
    user may share it. None: host memory of each worker."""


@dataclasses.dataclass(slots=True, kw_only=True)
class LearningRate:
    """The learning rate as a function of the optimizer step."""

    peak: float | None = None
    """The highest learning rate, at least 0. With `scaling`, this is the rate for `reference_batch_size`. None: the
    `learning_rate` in `optimizer`, or the optimizer's default, such as 0.001 for keras.optimizers:Adam."""
    schedule: dict[str, Any] = dataclasses.field(default_factory=lambda: {"target": "tfdist.zoo.schedules:constant"})
    """schedule(peak, *, total_steps, warmup_steps, **kw) -> a Keras LearningRateSchedule, or a float, which callbacks
    can change."""
    scaling: Literal["none", "linear", "sqrt"] = "none"
    """"none": peak as given. "linear": peak x batch_size / reference_batch_size (arXiv 1706.02677). "sqrt": peak x the
    square root of that factor."""
    reference_batch_size: int = 256
    """Examples, above 0; used if `scaling` is not "none"."""
    warmup_epochs: float = 0.0
    """Warm-up: the learning rate rises linearly from near 0 to its peak in this many epochs (arXiv 1706.02677)."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Train:
    """The length of the run and the computation of one step."""

    epochs: float | None = None
    """Length of the run in epochs; a fraction is allowed. Set exactly one of `epochs` and `steps`."""
    steps: int | None = None
    """Length of the run in optimizer steps."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the computation: "float32", "bfloat16" or "float16". Variables are float32. "float16" uses dynamic
    loss scaling."""
    xla: bool | None = None
    """Compile the forward and backward pass with XLA. Not supported with synchronised normalisation; usually slower on
    CPUs.
    None: true if the replicas are GPUs, the layers of the model and the other options support it, and
    TF_DETERMINISTIC_OPS is not set (docs/gpu.md)."""
    micro_batches: int = 1
    """Gradient accumulation: each replica processes its per-replica batch in this many micro-batches, one after
    another, with one all-reduce and one update at the end. Needs less memory; the update is the same, except for
    embeddings with Adam, which then squares the sum of the rows instead of each row (docs/scripts.md, "Embeddings")."""
    virtual_replicas: int | None = None
    """Number of shards into which each global batch is split: results are bitwise identical for any number of replicas
    that divides it (docs/same-bits.md). Dropout masks and batch statistics are computed per shard. None: not used."""
    recompute: list[str] = dataclasses.field(default_factory=list)
    """Names of layers whose activations are recomputed in the backward pass, such as ["block_*"]: less memory, more
    time, bitwise identical results (docs/guide.md, "The step")."""
    clip_norm: float | None = None
    """Maximum global norm of the summed gradients, above 0. None: no clipping."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """If the loss or a gradient is NaN or infinite: "stop" the run, or "skip" the update."""
    nonfinite_limit: int = 10
    """Maximum number of skipped updates in the whole run, at least 1; one more stops it."""
    call_seconds: float = 2.0
    """Target duration of an execution (one call of a tf.function that runs several steps), in seconds. An execution has
    at least one step. Signals are handled between executions."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Communication:
    """The all-reduce of the gradients. `implementation` and `bytes_per_pack` may be changed when a run is resumed."""

    implementation: Literal["auto", "nccl", "ring", "tcp"] = "auto"
    """"nccl", between GPUs; "tcp": tfdist's ring between CPUs (docs/speed.md); "ring": TensorFlow's ring over gRPC,
    which is also used instead of "tcp" if a worker has several replicas or GPUs. "auto": NCCL if replicas are GPUs,
    else "tcp"."""
    bytes_per_pack: int | None = None
    """Size of an all-reduce pack in bytes: gradients are sent in packs of this size, each as soon as its gradients are
    computed (docs/speed.md). 0: one pack. None: 32 MB with NCCL, else 4 MB."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the gradients on the network. "float32": not converted. "bfloat16" (not with NCCL) or "float16":
    half the bytes; weights and optimizer slots stay float32."""
    sparse_as_dense: bool = False
    """How gradients of embedding tables are summed. False: the rows of all replicas are gathered, and optimizers square
    and clip the row of each lookup separately. True: the rows are summed first, and the whole table is sent and updated
    like any other weight."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Evaluation:
    """Evaluations during training; there is always one at the end of the run."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))
    """Interval of the evaluations."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Consistency:
    """Comparison of the replicas' states, also at the start, at the end and before each save: all must be equal."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))
    """Interval of the comparisons. If the replicas differ, the run ends."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Checkpoint:
    """Checkpoints; one is always saved at the end of the run."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))
    """Interval of the checkpoints."""
    keep: int = 3
    """Number of newest checkpoints to keep, at least 1."""
    best_metric: str | None = None
    """Evaluation metric, such as "accuracy": the checkpoint with its best value is kept as well. None: no best
    checkpoint."""
    best_mode: Literal["max", "min"] = "max"
    """"max" if larger values of best_metric are better, "min" if smaller ones are."""
    export: bool = True
    """Write the final model to workdir/model.keras, which Keras loads without tfdist. It expects prepared examples."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Report:
    """Interval reports: console, workdir/metrics.jsonl and TensorBoard."""

    every: Every = dataclasses.field(default_factory=lambda: Every(epochs=1))
    """Interval of the reports."""
    summary: bool = False
    """Log the layers of the model with their shapes and parameters at the start, like Keras' `model.summary()`."""
    state_hash: Literal["comparisons", "reports", "none"] = "comparisons"
    """Write a hash of the state to metrics.jsonl at each comparison of the replicas; "reports": also at each report."""
    step_times: bool | None = None
    """Time each step: the fractions of time that each worker waits for input, computes and communicates. None: on CPUs
    only, because timing makes a GPU finish each step before the next one starts; not with TF_DETERMINISTIC_OPS."""
    tensorboard: bool = True
    """Write scalars to workdir/tensorboard."""
    profile: list[int] | None = None
    """Profile the steps [first, last], counted from 1, on the chief, for TensorBoard. None: no profile."""


@dataclasses.dataclass(slots=True, kw_only=True)
class ClusterOptions:
    """Connections, failure detection and devices. May be changed when a run is resumed. Times are at least 1 second."""

    port_base: int = 10000
    """First port of the range [port_base, port_base + port_count). The job id selects a run's ports in this range."""
    port_count: int = 10000
    """Number of ports in the range, which must be within 1024 .. 65535."""
    connect_seconds: float | None = None
    """Rendezvous timeout: seconds within which all workers must connect. After that, the run exits and lists the
    missing workers.
    None: 120, or 0.6 x the number of workers if that is more."""
    heartbeat_seconds: float = 10.0
    """Seconds without a heartbeat after which a worker is considered lost."""
    stall_seconds: float | None = 600.0
    """Maximum seconds for an execution, except the first one, or for reading or writing a file of the workdir; after
    that the run exits. None: no limit."""
    first_stall_seconds: float | None = 3600.0
    """Maximum seconds for the first execution, which compiles, and for each exchange between workers before it. None:
    no limit."""
    time_limit_seconds: float | None = None
    """Time limit of a process in seconds: shortly before it, or before the end of the Slurm job if that is sooner, the
    process saves a checkpoint and exits. None: only the end of the Slurm job counts."""
    requeue: bool = False
    """Requeue the Slurm job after a time limit or the loss of a worker (docs/slurm.md)."""
    gpus: Any = None
    """GPUs that each worker uses, one replica per GPU. None: all. A number: the first N GPUs; 0: the CPU. A list, such
    as [0, 2]: these GPUs, counted from 0."""
    logical_devices: int = 1
    """Logical CPU devices per worker, each with one replica; for tests on machines without GPUs."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Config:
    """The configuration of a run."""

    model: dict[str, Any]
    """model(**kw) -> keras.Model. The only field without a default."""
    adapt: dict[str, Any] | None = None
    """adapt(model, read, **kw): sets weights from data before the first step, such as normalisation statistics; read(n)
    returns the first n training examples in shuffled order, prepared without augmentation. None: no adaptation."""
    data: Data = dataclasses.field(default_factory=Data)
    objective: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"target": "tfdist.zoo.objectives:classification"}
    )
    """objective(model, batch, *, training, **kw) -> {"loss": [n], "accuracy": [n], ...}: one value per example. A
    keyword argument `inputs` is the key of the batch entry that is passed to the model."""
    optimizer: dict[str, Any] = dataclasses.field(default_factory=default_optimizer)
    """optimizer(schedule, **kw) -> keras.optimizers.Optimizer; `schedule` is the result of learning_rate.schedule. An
    argument `learning_rate` is a number, an alias of learning_rate.peak."""
    learning_rate: LearningRate = dataclasses.field(default_factory=LearningRate)
    train: Train = dataclasses.field(default_factory=Train)
    communication: Communication = dataclasses.field(default_factory=Communication)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    consistency: Consistency = dataclasses.field(default_factory=Consistency)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    callbacks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Keras callbacks, one spec each: [{"target": "keras.callbacks:EarlyStopping", "monitor": "val_loss"}]. Their logs
    contain the objective's values, and those of the evaluation as val_NAME. MLflow and W&B: see docs/many-runs.md."""
    report: Report = dataclasses.field(default_factory=Report)
    cluster: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)
    seed: int = 0
    """Seed of the initial weights, the order of examples, augmentation and dropout; 0 .. 2**31 - 1."""
