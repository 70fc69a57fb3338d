"""`tfdist doctor --gpu`: its table on two logical CPU devices, and what it recommends."""

import json
import re

import forked
import pytest
from launching import python, tfdist

from tfdist.tools.doctor import gpus

TABLE = """
import json
from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.tools.doctor import gpus

cluster = strategy.connect(c.ClusterOptions(logical_devices=2))
gpus.MODEL = {"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (32, 32, 3)}
gpus.BATCH, gpus.STEPS = 4, 2
print(json.dumps(gpus.measure_rows(cluster)))
"""


def test_recommendations():
    for seconds, expected in (
        ({"float32": 3.0, "bfloat16": 1.0, "float16": 0.95}, "bfloat16"),
        ({"float32": 3.0, "bfloat16": 2.9, "float16": 1.0}, "float16"),
        ({"float32": 1.0, "bfloat16": 1.2, "float16": 0.95}, "float32"),
    ):
        assert gpus.recommend_precision(seconds) == expected


@pytest.mark.slow
def test_the_table_on_two_devices():
    rows = dict(json.loads(python("-c", TABLE, timeout=1800).stdout.splitlines()[-1]))
    assert rows["devices"] == "2 replica(s) on the CPU"
    for precision in ("float32", "bfloat16", "float16"):
        assert " ms, " in rows[f"step {precision}"] and rows[f"step {precision}"].endswith("examples/s")
    assert re.fullmatch(r"config\.train\.precision=\S+: \S+ times the speed of float32", rows["precision"])
    done = tfdist("doctor", "--gpu", code=1, start=forked.run)
    assert done.stdout == "" and "--gpu: no GPU: CUDA_VISIBLE_DEVICES='' hides them" in done.stderr
