"""One task of a sweep's job array, within a batch job: `python -m tfdist.tools.many_runs.sweeps.task --index=3 ...`.

It starts the run with srun on the nodes of the task, and writes how it ended. `--until` is the epoch of the stage.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.cluster import interruption
from tfdist.tools.many_runs.sweeps import ends, halving, proposals
from tfdist.tools.many_runs.sweeps import plan as plans
from tfdist.tools.many_runs.sweeps.plan import Plan

# Seconds until the other workers of a run are killed after the first one has ended, as in the batch file.
_WAIT_SECONDS = 60
_POLL_SECONDS = 0.5


def main(arguments: Sequence[str]) -> int:
    """Runs the task; returns the exit code of the job."""
    parser = argparse.ArgumentParser(prog="tfdist.tools.many_runs.sweeps.task")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--until", type=int)
    given = parser.parse_args(arguments)
    plan = plans.read(given.workdir)
    if plan is None:
        sys.exit(f"There is no sweep in {given.workdir}.")
    if plan.proposals:
        return proposals.run_task(plan, given.workdir, given.index, start)
    name = list(plan.runs)[given.index]
    stage = halving.stage(plan, given.workdir)
    if stage.epochs != given.until:
        stages = [*plan.prune, None]
        if stages.index(stage.epochs) > stages.index(given.until):
            print(f"{name}: the stage until epoch {given.until} is over.")
            return 0
        print(f"{name}: not all runs have reached epoch {stage.epochs}, which decides: run the sweep's command again.")
        return 1
    if name not in stage.names or name in stage.done:
        print(f"{name}: {'was stopped: it is in the worse half' if name not in stage.names else 'is paused'}.")
        return 0
    workdir = given.workdir / name
    plans.make_run(workdir, plan.runs[name])
    code = start(plan, workdir, plan.command(workdir, plan.runs[name], *stage.fields))
    if stage.epochs and halving.has_ended(workdir, stage.epochs):
        return 0
    return code


def start(plan: Plan, workdir: Path, command: Sequence[str], watch: Callable[[], bool] = lambda: False) -> int:
    """Runs a command on the nodes of this job, with its output in the run's log; returns the exit code of the job.

    `watch` is called again and again while it runs; True: stop it, as by scancel.
    """
    # A run requeues its job itself, as in the batch file; a script leaves that to the batch file, after code 75.
    requeue = [] if plan.script else ["--config.cluster.requeue=true"]
    print(f"The output is in {workdir / ends.LOG}", flush=True)
    with (workdir / ends.LOG).open("ab") as log:
        srun = ["srun", f"--wait={_WAIT_SECONDS}", *command, *requeue]
        process = subprocess.Popen(srun, cwd=plan.directory, stdout=log, stderr=subprocess.STDOUT)
        asked = False
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if not asked and watch():
                asked = True
                process.terminate()
        code = process.returncode
    ends.write(workdir, code)
    return 1 if code == interruption.EXIT_STOPPED and not plan.script else code


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main(sys.argv[1:]))
