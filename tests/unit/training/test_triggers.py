"""When something is due, in steps and epochs, and how long a call may be."""

import itertools

import pytest

from tfdist.config import Every
from tfdist.training.triggers import DueSteps, ExecutionLength


def due_steps(every: Every, last: int, steps_per_epoch: int = 10) -> list[int]:
    """The steps up to `last` at which `every` is due, by asking at each."""
    return [step for step in range(last + 1) if DueSteps(every, steps_per_epoch).is_due(step)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (Every(), []),
        (Every(steps=1), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (Every(epochs=1), [10]),
        (Every(after=[1, 3]), [10]),
        (Every(after=[1], steps=6), [6, 10, 12]),
        # 2.5, 5, 7.5, 10, 12.5 steps: each is rounded by itself, halves upwards, so that epochs stay in step.
        (Every(epochs=0.25), [3, 5, 8, 10]),
        # Never more often than at every step.
        (Every(epochs=0.01), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        # Both: whenever either is due, once where they meet.
        (Every(steps=4, epochs=1), [4, 8, 10, 12]),
    ],
)
def test_steps_and_epochs_and_both(every, expected):
    assert due_steps(every, 12) == expected


def test_rounding_does_not_add_up_over_many_epochs():
    # A third of an epoch of 10 steps: every third time exactly at the epoch's end.
    steps = due_steps(Every(epochs=1 / 3), 3000)
    assert len(steps) == 900
    assert steps[2::3] == list(range(10, 3001, 10))
    assert set(b - a for a, b in itertools.pairwise([0, *steps])) == {3, 4}


@pytest.mark.parametrize("every", [Every(steps=7), Every(epochs=0.3), Every(epochs=1.7), Every(steps=6, epochs=0.7)])
@pytest.mark.parametrize("steps_per_epoch", [1, 31])
def test_the_next_trigger_is_the_first_that_is_due(every, steps_per_epoch):
    due = due_steps(every, 6000, steps_per_epoch)
    assert due
    expected = iter(due)
    coming = next(expected)
    for step in range(due[-1]):
        if step == coming:
            coming = next(expected)
        assert DueSteps(every, steps_per_epoch).next_after(step) == coming


@pytest.mark.parametrize(
    ("length", "executions"),
    [
        # Steps to the next boundary, steps of the execution, and its seconds. The first one compiles: its time says
        # nothing. After a step of 1 ms, 2,000 would fit; one step says little.
        (
            ExecutionLength(2.0),
            [(1000, 1, 7.0), (1000, 1, 0.001), (1000, 32, 0.032), (10_000, 1024, 1.024), (1000, 1000, 1.0)],
        ),
        # At least one step, even a slow one.
        (
            ExecutionLength(2.0, steps=2000, executions=5),
            [(10_000, 2000, 20.0), (10_000, 200, 2000.0), (10_000, 1, 100.0), (10_000, 1, 100.0)],
        ),
        # A near boundary does not shorten later executions.
        (ExecutionLength(1.0, steps=100, executions=5), [(3, 3, 0.03), (90, 90, 0.9)]),
        # A clock that stands still says nothing.
        (ExecutionLength(2.0, steps=16, executions=5), [(16, 16, 0.0), (100, 16, 0.0)]),
    ],
    ids=["grows", "becomes shorter", "near boundary", "zero seconds"],
)
def test_an_execution_takes_at_most_about_call_seconds(length, executions):
    for boundary, steps, seconds in executions:
        assert length.choose_steps(boundary) == steps
        length.record(steps, seconds)
