"""Makes steps with the shipped configs on several numbers of replicas, in one process.

usage: python shipped.py OUT.json CONFIG...   ->  {config: {replicas: [loss, largest change of a weight]}}
"""

import json
import pathlib
import runpy
import sys
from typing import Any

import numpy as np
import probes
from processes import REPOSITORY

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.training import evaluate, loop_tools, setup

REPLICAS = (1, 2, 4, 8)
# Config -> its data here, where those of the config are not in the package.
SMALLER: dict[str, dict[str, Any]] = {
    "digits": {},
    "line": {},
    "mlp": {"target": "tfdist.zoo.sources:synthetic", "num_test_examples": 16, "shape": (28, 28, 1)},
}


def smaller(name: str) -> c.Config:
    """Returns a shipped config with small data."""
    config = runpy.run_path(str(REPOSITORY / "configs" / f"{name}.py"))["get_config"]()
    if SMALLER[name]:
        config.data.source = SMALLER[name] | {"num_examples": 4 * config.data.batch_size}
    config.report.tensorboard = False
    return config


def steps(name: str, replicas: int, workdir: pathlib.Path) -> list[float]:
    """Makes two steps and an evaluation; returns the loss, and the largest change of a weight."""
    probes.forget()
    config = smaller(name)
    config.cluster.logical_devices = replicas
    run = setup.build_run(config, workdir)
    before = {key: array.copy() for key, array in checkpoint_format.snapshot(run.variables).items()}
    loss = probes.run_steps(run, 2)["loss"]
    after = checkpoint_format.snapshot(run.variables)
    if run.evaluation_data is not None:
        evaluate.evaluate(loop_tools.make_silent_tools(run), 2)
    moved = [float(np.abs(after[key] - before[key]).max()) for key in after if key.startswith("model/")]
    return [loss, max(moved)]


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    found = {}
    for name in names:
        batch = smaller(name).data.batch_size
        counts = [count for count in REPLICAS if batch % count == 0]
        found[name] = {count: steps(name, count, pathlib.Path(out).parent / name) for count in counts}
    pathlib.Path(out).write_text(json.dumps(found))
