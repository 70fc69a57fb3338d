"""Predictions of the time to a target from a noise scale."""

import json
import math

import numpy as np
import pytest

from tfdist.tools.many_runs import time_to_target
from tfdist.tools.scaling_results import Point
from tfdist.training.step.variants import noise_scale


def a_point(replicas, batch, seconds, noise=None):
    """One of a study of 6,400 examples, with `seconds` per epoch."""
    return Point(
        replicas=replicas,
        batch_size=batch,
        first_epoch_seconds=9.0,
        later_epoch_seconds=[seconds],
        examples=6400,
        noise_scale=noise,
    )


# With a noise scale of 300: 1 + 300 / B is 4, 2.5 and 1.75.
REACHED = time_to_target.Reached(steps=500, batch_size=200, noise_scale=300.0)
POINTS = [a_point(1, 100, 64.0), a_point(2, 200, 40.0, 280.0), a_point(4, 400, 32.0, 320.0)]


def test_steps_follow_the_equation_of_the_paper():
    most = {"measured_steps": 4000, "measured_batch": 100}
    assert time_to_target.steps_to_target(300, 100, **most) == 4000
    assert time_to_target.steps_to_target(300, 300, **most) == pytest.approx(2000)
    assert time_to_target.steps_to_target(300, 1e9, **most) == pytest.approx(1000, rel=1e-6)
    # Far below the noise scale, twice the batch needs half the steps.
    halves = [time_to_target.steps_to_target(1e9, batch, **most) for batch in (50, 100, 200)]
    assert halves == pytest.approx([8000, 4000, 2000], rel=1e-6)


def test_the_mean_over_a_run_predicts_the_sum_over_its_steps():
    parts, batch, other = [(2.0, 20.0), (1.0, 50.0), (0.1, 40.0), (0.05, 50.0)], 64, 512
    scales = [variance / square for square, variance in parts]
    predicted = sum((1 + scale / other) / (1 + scale / batch) for scale in scales)
    mean = time_to_target.average(parts, batch)
    found = time_to_target.steps_to_target(mean, other, measured_steps=len(parts), measured_batch=batch)
    assert found == pytest.approx(predicted) and min(scales) < mean < max(scales)


def test_with_an_unmeasurable_noise_scale_steps_are_inverse_to_the_batch():
    unknown = time_to_target.average([(-0.1, 20.0), (0.05, 30.0)], 64)
    assert unknown == math.inf
    assert time_to_target.steps_to_target(unknown, 128, measured_steps=1000, measured_batch=64) == 500
    assert "larger than was measured" in time_to_target.describe(POINTS, unknown, None)


def reports_of(numbers, average_steps):
    """Reports every two steps, of (|G|^2, tr(Sigma)) of single steps, averaged as a step averages them."""
    lines, averages = [], np.zeros(3)
    for step, pair in enumerate(numbers, 1):
        averages += (np.array([*pair, 1.0]) - averages) / average_steps
        if step % 2 == 0:
            line = {"kind": "train", "step": step, "steps": 2, "loss": 1.0}
            lines.append(line | noise_scale.values(averages.tolist()))
    return lines


def test_the_means_of_an_interval_do_not_hold_the_steps_before_it():
    # The gradient falls to a thousandth: its average over 10 steps is still that of the beginning.
    numbers = [(8.0, 90.0), (4.0, 60.0), (8e-3, 5.0), (8e-3, 5.0), (2e-3, 4.0), (4e-3, 6.0)]
    lines = reports_of(numbers, 10)
    assert lines[-1]["gradient_square"] > 1.0
    expected = [[(9 * a + 10 * b) / 19 for a, b in zip(*numbers[i : i + 2], strict=True)] for i in (0, 2, 4)]
    np.testing.assert_allclose(time_to_target.means(lines, 10), expected, rtol=1e-9)


def test_times_are_relative_or_in_seconds():
    assert time_to_target.predict(POINTS, 300.0, None) == pytest.approx([1, 2.5 / 4, 1.75 / 4])
    assert [point.step_seconds for point in POINTS] == pytest.approx([1.0, 1.25, 2.0])
    known = time_to_target.predict(POINTS, 300.0, REACHED)
    assert known == pytest.approx([800, 500, 350])
    seconds = [steps * point.step_seconds for steps, point in zip(known, POINTS, strict=True)]
    assert seconds == pytest.approx([800, 625, 700])


def test_the_description_names_the_soonest_and_says_what_is_missing():
    text = time_to_target.describe(POINTS, None, REACHED)
    assert text.startswith("Noise scale: 300 examples.") and "Soonest at a target: 2 replicas, 1.28 times" in text
    rows = [line.split() for line in text.splitlines()[3:6]]
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("1", "100", "800", "800"),
        ("2", "200", "500", "625"),
        ("4", "400", "350", "700"),
    ]
    assert time_to_target.measured_noise_scale(POINTS) == 300.0
    assert "relative" in time_to_target.describe(POINTS, None, None)
    assert "Soonest at a target: 1 replica. " in time_to_target.describe(POINTS, 1.0, None)
    missing = time_to_target.describe(POINTS[:1], None, None)
    assert "was not measured" in missing and "--noise_scale" in missing


def test_a_run_that_reached_its_target_is_read(tmp_path):
    lines = reports_of([(2.0, 20.0)] * 4 + [(1.0, 60.0)] * 4, 10)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"data": {"batch_size": 50}, "report": {"noise_scale": 10}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    start = {"start": 1.0, "now": 2.0, "first_step": 0, "step": 8, "steps_done": 8, "seconds": {}, "end": "stopped"}
    (tmp_path / "starts.jsonl").write_text(json.dumps(start) + "\n")
    with pytest.raises(ValueError, match="the run is stopped after step 8, so it has not ended at a target"):
        time_to_target.read(tmp_path)
    (tmp_path / "starts.jsonl").write_text(json.dumps(start | {"end": "finished"}) + "\n")
    found = time_to_target.read(tmp_path)
    assert (found.steps, found.batch_size) == (8, 50)
    assert found.noise_scale == pytest.approx((10 / 1.2 + 60 / 2.2) / (1 / 1.2 + 1 / 2.2))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 50}) + "\n")
    with pytest.raises(ValueError, match=r"no reports of a noise scale: train it with config\.report\.noise_scale=100"):
        time_to_target.read(tmp_path)
