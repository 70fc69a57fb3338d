"""A step on a GPU: no op on the host, no copy and no wait, except those of a list; see docs/speed.md."""

import gpu_audit
import gpu_variants
import on_workers
import pytest
import tensorflow as tf
from launching import REPOSITORY

from tfdist.configs.networks import optimizers
from tfdist.training.step import timing
from tfdist.zoo import schedules

# (kind, source, reader) -> why a step may have it.
ALLOWED = {
    ("on the host", "_seed", ""): "random seeds: TensorFlow's random ops read them from host memory",
    **{
        ("host to device", "StatelessRandomGetKeyCounter", f"StatelessRandom{kind}V2"): (
            "24 bytes for each use of a random layer; the host does not wait"
        )
        for kind in ("Uniform", "Normal")
    },
    ("device to host", "Const", "Assert"): "the check of tf.nn.compute_average_loss: a constant",
    ("loop variable", "int32", "AddV2"): "the number of an evaluation's first batch, for its random seeds",
    (
        "loop variable",
        "int32",
        "CollectiveReduceV2",
    ): "TensorFlow's number of an all-reduce, which waits for the last step",
}
# With loss scaling, or if non-finite steps are skipped, the host reads whether the gradients are finite.
DECISION = {("device to host", "All", "Switch"), ("device to host", "LogicalAnd", "Switch")}
DECIDES = {"float16", "skip", "compiled_float16"}
# Keras' argmax, in its accuracy, compares int32 numbers, which TensorFlow has in host memory.
KERAS_ARGMAX = {
    *{("host to device", "Const", "BitwiseAnd"), ("device to host", "BitwiseAnd", "Less")},
    ("host to device", "Less", "LogicalAnd"),
}
# Batches of unequal sizes: their sizes go to the device. TensorFlow computes the shape of the gradient of a sum over
# some axes on the device, and reads it on the host.
UNEQUAL_BATCHES = {
    ("device to host", "DynamicStitch", "Reshape"),
    *{("host to device", source, "DynamicStitch") for source in ("Const", "Shape")},
    *{("host to device", source, "GatherV2") for source in ("Const", "Shape")},
    *{("host to device", source, "Cast") for source in ("FloorDiv", "Size", "StridedSlice")},
    ("host to device", "Const", "AssignAddVariableOp"),  # An int32 variable of the script.
    # How many rows of an embedding each replica has; the host chooses the collective of that size.
    *{("host to device", "Const", "OneHot"), ("host to device", "Shape", "StridedSlice")},
    ("device to host", "Cast", "Sum"),
}
# Keras' Embedding compares int32 tokens; int64 ones stay on the device.
INT32_TOKENS = {
    *{("device to host", "IteratorGetNext", "Less"), ("device to host", "SelectV2", "Reshape")},
    *{("host to device", "AddV2", "SelectV2"), ("host to device", "Less", "SelectV2")},
    ("host to device", "Reshape", "Cast"),
}
# What models have because of their data, and a variant because of what it does.
OF_DATA = {
    "compiled_tokens": INT32_TOKENS,
    # An objective of Keras, tokens, and the numbers of positions; with XLA, the default on GPUs, a step has none of it.
    "char_gpt": {
        *KERAS_ARGMAX | INT32_TOKENS,
        *{("host to device", "Const", "GatherV2"), ("host to device", "Const", "UnsortedSegmentSum")},
    },
    "compiled_uneven": UNEQUAL_BATCHES,
    "own_steps_uneven": UNEQUAL_BATCHES,
}


def audited(replicas, names):
    """What the audit finds in the steps of the configs `names`."""
    # oneDNN's ops are those of CPUs.
    variables = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    (found,) = on_workers.call(gpu_variants.audit_all, replicas, names, variables=variables)
    return found


def allowed(name):
    """The findings that the config `name` may have."""
    by_keras = name.startswith(("courses.", "compiled"))
    more = [DECISION if name in DECIDES else {}, KERAS_ARGMAX if by_keras else {}, OF_DATA.get(name, {})]
    return {*ALLOWED}.union(*more)


def unexpected(found, names):
    """The findings that are not on the list."""
    return [
        (name, step, *row)
        for name in names
        for step, rows in found[name].items()
        for row in rows
        if tuple(row[:3]) not in allowed(name)
    ]


def test_every_config_optimizer_and_schedule_is_audited(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    folder = REPOSITORY / "configs"
    files = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if not {"networks", "laboratory"} & {*path.parts}
    }
    assert files == {*gpu_variants.SHIPPED}
    configs = [gpu_variants.make_config(name) for name in (*gpu_variants.SHIPPED, *gpu_variants.VARIANTS)]
    targets = {one.learning_rate.schedule["target"] for one in configs} | {one.optimizer["target"] for one in configs}
    for module in (optimizers, schedules):
        made = {name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
        functions = {name for name in made if name.islower() and not name.startswith("_")}
        assert functions and {f"{module.__name__}:{name}" for name in functions} <= targets


@pytest.mark.slow
def test_random_seeds_are_computed_without_waiting_for_the_device():
    # Two layers on two replicas; a key and a counter for each.
    rows = [row for row in audited(2, ["dropout"])["dropout"]["training"] if row[0] != "loop variable"]
    assert rows == [
        ["device to host", "Const", "Assert", 2],
        ["host to device", "StatelessRandomGetKeyCounter", "StatelessRandomUniformV2", 8],
        ["on the host", "_seed", "", 4],
    ]


@pytest.mark.slow
def test_the_audit_finds_steps_that_are_timed():
    found = {tuple(row[:3]) for row in audited(1, ("timed",))["timed"]["training"]}
    assert ("on the host", "Timestamp", "") in found
    assert ("wait", "ResourceApplyKerasMomentum", "Timestamp") in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "names"),
    [
        (1, gpu_variants.SHIPPED),
        (2, tuple(name for name in gpu_variants.VARIANTS if name != "timed")),
        (2, tuple(gpu_variants.COMPILED)),
    ],
    ids=["shipped configs", "variants on two replicas", "compiled models on two replicas"],
)
def test_no_config_variant_or_compiled_model_has_more_on_the_host(replicas, names):
    assert unexpected(audited(replicas, names), names) == []


@pytest.mark.parametrize(
    ("step_times", "device_type", "timed"),
    [(None, "CPU", True), (None, "GPU", False), (True, "GPU", True), (False, "CPU", False)],
)
def test_steps_are_timed_on_cpus_or_on_request(step_times, device_type, timed):
    assert (timing.choose_clock(step_times, device_type) is timing.timestamp_after) == timed


def test_gpu_kernels_are_those_of_the_types():
    node = tf.compat.v1.NodeDef(op="Less")
    node.attr["T"].type = tf.int64.as_datatype_enum
    assert list(gpu_audit.gpu_kernel(node).host_memory_arg) == []
    node.attr["T"].type = tf.int32.as_datatype_enum
    assert set(gpu_audit.gpu_kernel(node).host_memory_arg) == {"x", "y", "z"}
    node.attr["T"].type = tf.string.as_datatype_enum
    assert gpu_audit.gpu_kernel(node) is None
