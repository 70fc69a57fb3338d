"""One task of a sweep's job array, within a batch job: `python -m tfdist.tools.many_runs.sweeps.task --index=3 ...`.

It starts the run with srun on the nodes of the task, and writes how it ended.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster import interruption
from tfdist.tools.many_runs.sweeps import ends
from tfdist.tools.many_runs.sweeps import plan as plans

# Seconds until the other workers of a run are killed after the first one has ended, as in the batch file.
_WAIT_SECONDS = 60


def main(arguments: Sequence[str]) -> int:
    """Runs the task; returns the exit code of the job."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--index", type=int, required=True)
    given = parser.parse_args(arguments)
    plan = plans.read(given.workdir)
    if plan is None:
        sys.exit(f"There is no sweep in {given.workdir}.")
    name = list(plan.runs)[given.index]
    workdir = given.workdir / name
    plans.make_run(workdir, plan.runs[name])
    # A run requeues its job itself, as in the batch file; a script leaves that to the batch file, after code 75.
    requeue = [] if plan.script else ["--config.cluster.requeue=true"]
    command = ["srun", f"--wait={_WAIT_SECONDS}", *plan.command(workdir, plan.runs[name]), *requeue]
    print(f"The output is in {workdir / ends.LOG}", flush=True)
    with (workdir / ends.LOG).open("ab") as log:
        code = subprocess.run(command, cwd=plan.directory, stdout=log, stderr=subprocess.STDOUT).returncode
    ends.write(workdir, code)
    return 1 if code == interruption.EXIT_STOPPED and not plan.script else code


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main(sys.argv[1:]))
