"""`tfdist doctor --gpu`: its table on two logical CPU devices, and what it makes of nvidia-smi's output."""

import json
import re
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment

from tfdist.cluster.devices.gpu_table import HostGpu
from tfdist.tools.doctor import gpus

# The form of `nvidia-smi topo -m` on a host with four A100 and NVLink within two pairs; with its underlined header.
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n"
A100 = {index: HostGpu(index, "NVIDIA A100", f"GPU-{index}", 81920, (8, 0), 4, 16) for index in range(4)}
TABLE = """
import json
from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.tools.doctor import gpus

cluster = strategy.connect(c.ClusterOptions(logical_devices=2))
gpus.MODEL = {"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (32, 32, 3)}
gpus.MEGABYTES, gpus.BATCH, gpus.STEPS = (0.001, 0.1), 4, 2
print(json.dumps(gpus.measure_rows(cluster, ("NV12 (NVLink)", 300.0))))
"""


def test_the_matrix_of_links():
    found = gpus.parse_topology(TOPOLOGY)
    assert found[0, 1] == found[1, 0] == found[2, 3] == "NV12" and found[0, 2] == found[3, 1] == "SYS"
    assert len(found) == 12
    assert gpus.parse_topology(ONE) == gpus.parse_topology("") == {}


def test_the_slowest_link_counts():
    assert gpus.slowest_link(TOPOLOGY, [0, 1], A100) == ("NV12 (NVLink)", 300.0)
    kind, speed = gpus.slowest_link(TOPOLOGY, [0, 1, 2, 3], A100)
    assert kind == "SYS (PCIe through the host)" and speed == pytest.approx(31.5, abs=0.1)
    assert gpus.slowest_link("", [0, 1], A100) is None


def test_recommendations():
    rates = {1: 10.0, 8: 69.0, 16: 94.0, 32: 98.0, 256: 91.0}
    assert gpus.recommend_megabytes(rates) == 16
    for seconds, expected in (
        ({"float32": 3.0, "bfloat16": 1.0, "float16": 0.95}, "bfloat16"),
        ({"float32": 3.0, "bfloat16": 2.9, "float16": 1.0}, "float16"),
        ({"float32": 1.0, "bfloat16": 1.2, "float16": 0.95}, "float32"),
    ):
        assert gpus.recommend_precision(seconds) == expected


@pytest.mark.slow
@pytest.mark.workers
def test_the_table_on_two_devices():
    keywords = {"cwd": REPOSITORY, "env": worker_environment(), "capture_output": True, "text": True, "timeout": 1800}
    done = forked.run([sys.executable, "-c", TABLE], **keywords)
    assert done.returncode == 0, done.stderr
    rows = dict(json.loads(done.stdout.splitlines()[-1]))
    assert rows["devices"] == "2 replica(s) on the CPU"
    assert rows["links"] == "NV12 (NVLink), 300 GB/s each way"
    assert "by size: 0.001 MB" in rows["all-reduce"] and rows["all-reduce"].endswith("of the link")
    for precision in ("float32", "bfloat16", "float16"):
        assert " ms, " in rows[f"step {precision}"] and rows[f"step {precision}"].endswith("examples/s")
    assert re.fullmatch(r"config\.train\.precision=\S+: \S+ times the speed of float32", rows["precision"])
    assert re.match(r"\S+ ms without XLA, \S+ times as long", rows["XLA"])
    assert rows["packs"] in ("config.communication.bytes_per_pack=1000", "config.communication.bytes_per_pack=100000")
    done = forked.run([sys.executable, "-m", "tfdist", "doctor", "--gpu"], **keywords)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "tfdist doctor --gpu: no GPU: CUDA_VISIBLE_DEVICES='' hides them, or this machine has none.\n"
    )
