"""The configuration of a run: every knob once, with its meaning. Imports no TensorFlow.

A config file holds a `get_config()` that returns a `Config`. Fields that are `dict`s name a function by
dotted path and give its keyword arguments, `dict(target="my_lab.losses:focal", gamma=2.0)`; `build` calls it.
Nothing here speaks of hardware: batch sizes are global and the replicas are discovered.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
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


# Sections that do not change the weights a run arrives at; they may differ when it is resumed.
SECTIONS_FREE_TO_CHANGE = ("evaluation", "agreement", "checkpoint", "report", "cluster")
FIELDS_FREE_TO_CHANGE = ("data.cache", "data.cache_dir")


def build(spec: dict[str, Any], *args: Any, field: str, **extra: Any) -> Any:
    """Calls the function that `spec["target"]` names, with `spec`'s other items as keyword arguments.

    Args:
        spec: `{"target": "package.module:function", **keyword_arguments}`.
        *args: positional arguments put before them.
        field: the config field that holds `spec`, for messages.
        **extra: further keyword arguments; `spec` may not repeat them.

    Returns:
        What the function returns.

    Raises:
        ValueError: the target cannot be imported, or its signature does not take these arguments.
    """
    function = resolve(spec, field=field)
    return function(*args, **_bind(function, spec, args, extra, field))


def partial(spec: dict[str, Any], *, field: str, positional: int = 0, **expected: Any) -> Callable[..., Any]:
    """Like `build`, for a function that is called later, with `positional` arguments and the keywords `expected`.

    The arguments of `spec` are checked against the signature now, so that a typo ends the run before it starts.

    Raises:
        ValueError: as `build`.
    """
    function = resolve(spec, field=field)
    _bind(function, spec, (None,) * positional, expected, field)
    return functools.partial(function, **{key: value for key, value in spec.items() if key != "target"})


def resolve(spec: dict[str, Any], *, field: str) -> Callable[..., Any]:
    """Imports and returns the function that `spec["target"]` names; see `build`."""
    target = spec.get("target")
    if not isinstance(target, str) or target.count(":") != 1:
        raise ValueError(f'{field}.target must name a function as "package.module:function". Received: {target!r}')
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise  # The module exists, and something it imports does not.
        raise ValueError(
            f"{field}.target={target!r}: there is no module {error.name!r}. Modules are looked for in the working "
            "directory and among the installed packages."
        ) from None
    function = module
    for part in name.split("."):
        if not hasattr(function, part):
            hint = nearest(part, [n for n in dir(function) if not n.startswith("_")])
            raise ValueError(f"{field}.target={target!r}: {module_name} has no {part!r}.{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise ValueError(f"{field}.target={target!r} is not callable: {function!r}")
    return function


def _bind(function: Callable, spec: dict, args: tuple, extra: dict, field: str) -> dict[str, Any]:
    keywords = {key: value for key, value in spec.items() if key != "target"}
    repeated = sorted(set(keywords) & set(extra))
    if repeated:
        raise ValueError(f"{field}.{repeated[0]} is given by the framework: remove it. Received: {spec!r}")
    merged = extra | keywords
    parameters = inspect.signature(function).parameters.values()
    # Keras' optimizers take any keyword, to refuse later what they do not name.
    of_keras = str(getattr(function, "__module__", "")).startswith("keras.src.optimizers")
    if of_keras or not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for key in keywords:
            if key not in names:
                hint = nearest(key, names)
                raise ValueError(f"{field}.{key}: {spec['target']} takes no argument {key!r}.{hint}")
    try:
        inspect.signature(function).bind(*args, **merged)
    except TypeError as error:
        raise ValueError(f"{field}: {spec['target']} cannot be called so: {error}. Received: {spec!r}") from None
    return merged


def nearest(name: str, candidates: list[str]) -> str:
    """Returns a sentence that names the candidate nearest to `name`, or all; begins with a space or is empty."""
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" It has: {', '.join(sorted(candidates))}." if candidates else ""


def nearest_field(config: Any, dotted: str) -> str:
    """Returns a sentence that names the field of `config` nearest to the unknown field `dotted`."""
    return nearest(dotted, [name for name, _ in flatten(config)])


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `("data.batch_size", 128)` for every leaf of dataclasses and dicts, in order."""
    if dataclasses.is_dataclass(config):
        items = [(f.name, getattr(config, f.name)) for f in dataclasses.fields(config)]
    else:
        items = list(config.items())
    for key, value in items:
        if dataclasses.is_dataclass(value) or (isinstance(value, dict) and value):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lists, one line a field, where two configs given as nested dicts differ in what decides the weights."""
    before, after = dict(flatten(old)), dict(flatten(new))
    lines = []
    for name in dict.fromkeys([*before, *after]):
        if name.partition(".")[0] in SECTIONS_FREE_TO_CHANGE or name in FIELDS_FREE_TO_CHANGE:
            continue
        first, second = before.get(name, "(absent)"), after.get(name, "(absent)")
        if first != second:
            lines.append(f"{name}: {first!r} was {'saved' if name in before else 'not set'}, now {second!r}")
    return lines
