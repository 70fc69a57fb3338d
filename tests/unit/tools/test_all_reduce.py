"""What an all-reduce costs: the ring that is fitted to measured times, and the command on two replicas."""

import re

import forked
import numpy as np
import pytest
from launching import csv_rows, tfdist

from tfdist.configs.laboratory import all_reduce


def test_fit_recovers_latency_and_bandwidth_from_times():
    ring = all_reduce.RingCostModel(latency=2e-4, bandwidth=5e8)
    sizes = [4, 1000, 100_000, 10_000_000]
    found = all_reduce.fit(sizes, [ring.seconds(size, 4) for size in sizes], 4)
    np.testing.assert_allclose([found.latency, found.bandwidth], [2e-4, 5e8], rtol=1e-6)
    np.testing.assert_allclose(ring.seconds(1e6, 4), 6 * 2e-4 + 2 * 3 / 4 * 1e6 / 5e8)
    assert all_reduce.fit([4, 1000], [1e-3, 5e-4], 2).latency >= 0


@pytest.mark.slow
def test_all_reduce_measures_sizes_and_predicts_steps(tmp_path):
    options = ["--steps=2", "--largest_mb=0.1", "--config.cluster.logical_devices=2", "--ring", f"--workdir={tmp_path}"]
    done = tfdist("all_reduce", "--config=configs/digits.py", *options, start=forked.run)
    rows = csv_rows(tmp_path / "all_reduce.csv")
    sizes = [4, 64, 1024, 16384, 104857]
    assert [(int(row["bytes"]), int(row["ring_bytes"])) for row in rows] == [(size, size) for size in sizes]
    assert all(float(row["measured_ms"]) > 0 for row in rows)
    # The weights of configs/digits.py: two normalised convolutions and the logits.
    weights = 9 * 32 + 64 + 9 * 32 * 64 + 128 + 4 * 4 * 64 * 10 + 10
    assert f"; gradients: {4 * weights:,} bytes," in done.stdout and "ms per message" in done.stdout
    assert re.search(r"a step: \S+ ms without communication, \S+ ms with it", done.stdout)
    assert f"ring: 2 messages of a replica, 1 x the {4 * weights:,} bytes of its gradients" in done.stdout
    assert float(re.search(r"the sums differ by at most (\S+) of", done.stdout)[1]) < 1e-6
    steps = csv_rows(tmp_path / "ring.csv")
    assert [(row["phase"], row["replica"]) for row in steps] == [
        (phase, replica) for phase in ("reduce-scatter", "all-gather") for replica in "01"
    ]
    assert all(float(row["ms"]) > 0 for row in steps)
    # Chunk 1 has its sum on replica 0 after the first step, and on replica 1 after the second.
    assert steps[0]["chunk_received"] == steps[3]["chunk_received"] == "1"
    assert steps[0]["value_after"] == steps[3]["value_after"] != "0.0"
