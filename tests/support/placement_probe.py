"""Stands where `python` is looked for: notes what a launch file has made of its task, and trains nothing.

python placement_probe.py DIRECTORY -m tfdist.main FLAGS... writes DIRECTORY/RANK.json.
"""

import dataclasses
import json
import os
import pathlib
import sys

from tfdist.cluster.discovery import environment

if __name__ == "__main__":
    place = environment.resolve(os.environ, port_base=10000, port_count=10000)
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "PBS_JOBID", "IN_CONTAINER")
    seen = {name: os.environ[name] for name in names if name in os.environ}
    found = {
        "worker_spec": dataclasses.asdict(place),
        "arguments": sys.argv[2:],
        "environment": seen,
        "cwd": os.getcwd(),
    }
    pathlib.Path(sys.argv[1], f"{place.rank}.json").write_text(json.dumps(found))
