"""What is said of hashes that differ in an audited step, and how batches are sent."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.consistency import audit
from tfdist.training.step.variants import audited_step

STATES, VALUES = ("state/a", "state/b"), ("losses and metrics", "kernel", "bias")


def found(replicas, *wrong, state=()):
    """The faults that are found if each (device, attempts, name) computes other hashes of `name` in these attempts.

    Attempts are those of `audit.Layout`: 0, 1 first; 2, 3 repeated; 4 as the third.
    """
    layout = audit.Layout(states=STATES, values=VALUES, replicas=replicas)
    rows = np.zeros([replicas, layout.size // replicas], np.int64)
    for device in range(replicas):
        rows[device, :2] = 7
        for attempt, offset in enumerate((0, 1, 0, 1, 2)):
            share = (device + offset) % replicas
            rows[device, 2 + 3 * attempt : 5 + 3 * attempt] = 10 * share + np.arange(3)
    for device, attempts, name in wrong:
        for attempt in attempts:
            rows[device, 2 + 3 * attempt + VALUES.index(name)] += 1000
    for device, name in state:
        rows[device, STATES.index(name)] += 1
    return [(one.replica, one.kind, one.names) for one in audit.judge(layout, rows.reshape(-1))]


def test_nothing_is_found_where_all_agree():
    assert found(2) == found(4) == []


@pytest.mark.parametrize("replicas", [3, 4, 9])
def test_of_three_or_more_replicas_the_wrong_one_is_named(replicas):
    for device in range(replicas):
        assert found(replicas, (device, range(5), "kernel")) == [(device, "persistent", ("kernel",))]
        assert found(replicas, (device, [0], "bias")) == [(device, "transient", ("bias",))]
        assert found(replicas, (device, [1], "bias")) == [(device, "transient", ("bias",))]
        # Wrong in its own share only, as a fault that depends on the numbers.
        assert found(replicas, (device, [0, 2], "bias")) == [(device, "persistent", ("bias",))]
        assert found(replicas, state=[(device, "state/b")]) == [(device, "state", ("state/b",))]
        from_state = found(replicas, (device, range(5), "kernel"), state=[(device, "state/a")])
        assert from_state == [(device, "state", ("state/a",))]


def test_of_two_replicas_both_may_be_wrong_unless_a_repetition_tells():
    both = [(0, "one of two", ("kernel",)), (1, "one of two", ("kernel",))]
    assert found(2, (1, range(5), "kernel")) == both
    assert found(2, state=[(1, "state/a")]) == [(0, "one of two", ("state/a",)), (1, "one of two", ("state/a",))]
    assert found(2, (1, [0], "kernel")) == [(1, "transient", ("kernel",))]
    assert found(2, (0, [1], "kernel")) == [(0, "transient", ("kernel",))]


def test_two_wrong_replicas_are_named():
    apart = found(6, (1, range(5), "kernel"), (4, range(5), "bias"))
    assert apart == [(1, "persistent", ("kernel",)), (4, "persistent", ("bias",))]
    assert {1, 2} <= {replica for replica, *_ in found(6, (1, range(5), "kernel"), (2, range(5), "bias"))}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("small", [tf.int32, tf.int64])
def test_batches_keep_their_bits(dtype, small):
    values = tf.cast(tf.constant([0.0, -0.0, 1.5, float("nan"), 0.0, 3e-5]), dtype)
    integers = audited_step._to_integers(values, small)
    assert integers.dtype in (small, tf.int64)
    again = audited_step._from_integers(integers, values.dtype)
    assert again.dtype == values.dtype and again.numpy().tobytes() == values.numpy().tobytes()


def test_texts_in_a_batch_are_refused():
    with pytest.raises(ValueError, match=r"config\.consistency\.audit\.every cannot be used: a batch has texts"):
        audited_step._to_integers(tf.constant(["a"]), tf.int32)
