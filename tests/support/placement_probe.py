"""Replaces `python` in the PATH of a launch file: records the task that the file sets up, and trains nothing.

python placement_probe.py DIRECTORY -m tfdist.main FLAGS... writes DIRECTORY/RANK.json.
"""

import dataclasses
import json
import os
import pathlib
import sys

from tfdist.cluster.discovery import environment

if __name__ == "__main__":
    spec = environment.resolve(os.environ, port_base=10000, port_count=10000)
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "PBS_JOBID", "IN_CONTAINER")
    seen = {name: os.environ[name] for name in names if name in os.environ}
    found = {
        "worker_spec": dataclasses.asdict(spec),
        "arguments": sys.argv[2:],
        "environment": seen,
        "cwd": os.getcwd(),
    }
    pathlib.Path(sys.argv[1], f"{spec.rank}.json").write_text(json.dumps(found))
