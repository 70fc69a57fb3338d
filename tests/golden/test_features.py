"""Golden runs of one feature each, stopped and resumed: they come out as the uninterrupted runs were recorded."""

import json

import golden_runs as golden
import pytest
from test_golden import forked_processes, recorded_names, topology_can_be_had  # noqa: F401

# Fixed shards are all examples where there is one worker.
WORKERS = ("fixed_shards",)
CASES = {name: (name, "two_workers" if name in WORKERS else "two_devices") for name in golden.FEATURES}


@recorded_names
@pytest.mark.slow  # Each takes some 15 s of processor time.
@pytest.mark.parametrize(("name", "topology"), CASES.values())
def test_a_feature_stops_and_resumes_to_what_was_recorded(name, topology, tmp_path):
    recorded = json.loads(golden.VALUES.read_text())[f"{name}/{topology}"]
    assert golden.differences(golden.stop_and_resume(name, topology, tmp_path), recorded, name) == []
