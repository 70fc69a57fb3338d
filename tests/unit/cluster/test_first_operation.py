"""What `connect` imports; after another operation of TensorFlow it is one message that says what to move."""

import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment

from tfdist.cluster import planning


@pytest.mark.workers
def test_an_operation_before_connect_is_explained():
    code = (
        "import tensorflow as tf, tfdist; tf.ones([2]); from tfdist import config as c; "
        "tfdist.connect(c.ClusterOptions(gpus=0, logical_devices=2))"
    )
    command = [sys.executable, "-c", code]
    done = forked.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: tfdist.connect() must come before all other operations"), done.stderr


@pytest.mark.workers
def test_one_worker_imports_nothing_that_several_need():
    code = (
        "import sys, tfdist; from tfdist import config as c; tfdist.connect(c.ClusterOptions(gpus=0)); "
        "print(*(name for name in sys.modules if name.startswith('tfdist.cluster.')))"
    )
    env = worker_environment()
    done = forked.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=120
    )
    found = set(done.stdout.split())
    assert "tfdist.cluster.control.heartbeat_monitor" in found, done.stderr
    several = ("several_workers", "control.wire", "control.rendezvous", "control.peers", "control.watchdog")
    assert [name for name in found if name.removeprefix("tfdist.cluster.").startswith(several)] == []


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match=r"^another$"), planning.explain_late_configuration():
        raise RuntimeError("another")
    late = pytest.raises(RuntimeError, match=r"must come before .* program startup")
    with late, planning.explain_late_configuration():
        raise RuntimeError("Collective ops must be configured at program startup")
