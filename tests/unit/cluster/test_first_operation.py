"""What `connect` imports; after another operation of TensorFlow it is one message that says what to move."""

import json
import socket

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
    show = "print(json.dumps(cluster.roster.workers)); print(os.getpid()); print(*sys.modules)"
    done = run(f"import json, os, sys; cluster = tfdist.connect(c.ClusterOptions(gpus=0)); {show}")
    workers, pid, modules = done.stdout.splitlines()[-3:]
    me = {"rank": 0, "address": "localhost", "host": socket.gethostname(), "pid": int(pid), "devices": "1 CPU"}
    assert json.loads(workers) == [me]
    found = {name.removeprefix("tfdist.cluster.") for name in modules.split() if name.startswith("tfdist.cluster.")}
    assert "control.heartbeat_monitor" in found, done.stderr
    several = ("several_workers", "control.wire", "control.rendezvous", "control.peers", "control.watchdog")
    assert [name for name in found if name.startswith(several)] == []
