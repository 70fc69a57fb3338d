"""The golden runs: what was computed on a known commit is computed still, to the bit where the machine allows it."""

import json
import sys

import forked
import golden_runs as golden
import keras
import numpy as np
import processes
import pytest
from parameters import slow_except

# These run by default, the others with the slow tests.
QUICK = [("digits", "two_workers")]
QUICK_RESUMED = ["config"]


@pytest.fixture(autouse=True, scope="module")
def forked_processes():
    """Saves the imports of each run; see tests/unit/test_forked.py for what stays equal to the bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "Popen", forked.Popen)
        patch.setenv(forked.OPTIMIZE, "1")
        yield


@pytest.fixture(scope="module")
def found(forked_processes, tmp_path_factory):
    """("train", name, topology) or ("resume", name) -> what `golden_runs` finds; those by default at the same time."""

    def measure(run):
        how, *names = run
        return getattr(golden, how)(*names, tmp_path_factory.mktemp("golden"))

    quick = [("train", *case) for case in QUICK if sys.platform == "linux" or case[1] != "two_workers"]
    return processes.measure_groups(measure, [*quick, *(("resume", name) for name in QUICK_RESUMED)])


@pytest.fixture(autouse=True)
def topology_can_be_had(request: pytest.FixtureRequest) -> None:
    """Skips what needs several workers on one machine where that does not work."""
    if "two_workers" in request.node.name and sys.platform != "linux":
        pytest.skip("several workers on one machine need Linux")


recorded_names = pytest.mark.skipif(
    keras.__version__.startswith(("3.12", "3.13", "3.14")),
    reason="the optimizers' variables have other names before Keras 3.15",
)


@recorded_names
@pytest.mark.parametrize(("name", "topology"), slow_except(golden.CASES, QUICK))
def test_a_golden_run_comes_out_as_recorded(name, topology, found):
    recorded = json.loads(golden.VALUES.read_text())[f"{name}/{topology}"]
    assert golden.differences(found(("train", name, topology)), recorded, name) == []


@recorded_names
@pytest.mark.parametrize("name", slow_except(golden.RESUMED, QUICK_RESUMED))
def test_a_run_of_an_old_commit_resumes_to_the_same_weights(name, found):
    old = golden.OLD_WORKDIRS / name
    recorded = json.loads((old / "uninterrupted.json").read_text())
    values, arrays = found(("resume", name))
    if name == "script":
        # That commit kept the loss of the interrupted epoch elsewhere: the one that is reported is that of its rest.
        for one in (values, recorded[next(iter(recorded))]):
            one["records"] = [line for line in one["records"] if not line.startswith("train step=12 ")]
    assert golden.differences(values, recorded, golden.RESUMED[name]) == []
    with np.load(old / "final.npz") as expected:
        assert sorted(expected) == list(arrays)
        for key in arrays:
            np.testing.assert_allclose(arrays[key], expected[key], rtol=0, atol=golden.WEIGHTS_TOLERANCE, err_msg=key)
