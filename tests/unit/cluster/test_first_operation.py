"""What `connect` imports; after another operation of TensorFlow it is one message that says what to move."""

import pytest
from launching import python


def run(code):
    return python("-c", f"import tfdist; from tfdist import config as c; {code}", code=None)


@pytest.mark.workers
def test_an_operation_before_connect_is_explained():
    done = run("import tensorflow as tf; tf.ones([2]); tfdist.connect(c.ClusterOptions(gpus=0, logical_devices=2))")
    assert done.returncode != 0
    assert "RuntimeError: tfdist.connect() must come before" in done.stderr.strip().splitlines()[-1], done.stderr


@pytest.mark.workers
def test_one_worker_imports_nothing_that_several_need():
    done = run("import sys; tfdist.connect(c.ClusterOptions(gpus=0)); print(*sys.modules)")
    found = {name.removeprefix("tfdist.cluster.") for name in done.stdout.split() if name.startswith("tfdist.cluster.")}
    assert "control.heartbeat_monitor" in found, done.stderr
    several = ("several_workers", "control.wire", "control.rendezvous", "control.peers", "control.watchdog")
    assert [name for name in found if name.startswith(several)] == []
