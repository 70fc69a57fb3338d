"""Submits the runs of a sweep as one job array of Slurm; each of its tasks is `tfdist.tools.many_runs.sweeps.task`."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.discovery import hostlist
from tfdist.report import files
from tfdist.tools.many_runs.sweeps import ends
from tfdist.tools.many_runs.sweeps import task as task_lib
from tfdist.tools.many_runs.sweeps.plan import Plan

# In the workdir of the sweep: the ids of its job arrays.
FILE = "jobs.json"
_ANSWER_SECONDS = 60.0
# Options of sbatch that a sweep passes on; those of its own, such as --array, are not among them.
OPTIONS = (
    *("account", "begin", "chdir", "comment", "constraint", "cores-per-socket", "cpus-per-gpu", "cpus-per-task"),
    *("distribution", "exclude", "exclusive", "export", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node"),
    *("gpus-per-task", "gres", "hint", "hold", "job-name", "licenses", "mail-type", "mail-user", "mem"),
    *("mem-per-cpu", "mem-per-gpu", "nice", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "partition", "qos", "reservation", "signal", "switches", "threads-per-core", "time", "tmp"),
)


def divide(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words of a command line without the options of sbatch, and these as `--name=value`."""
    rest: list[str] = []
    options: list[str] = []
    words = list(given)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name[:2] == "--" and name[2:].replace("_", "-") in OPTIONS:
            if not equals and words and not words[0].startswith("-"):
                equals, value = "=", words.pop(0)
            options.append(f"{name.replace('_', '-')}{equals}{value}")
        else:
            rest.append(word)
    return rest, options


def check(batch_file: str) -> None:
    """Raises a ValueError if there is no such batch file, or no Slurm on this machine."""
    if not Path(batch_file).is_file():
        raise ValueError(f"--slurm={batch_file}: there is no such file. The template is launch/slurm.sbatch.")
    if shutil.which("sbatch") is None:
        raise ValueError("--slurm needs sbatch, which is not on this machine: start the sweep on a login node.")


def submit(plan: Plan, workdir: Path, batch_file: str, options: Sequence[str], max_at_once: int | None) -> int:
    """Submits what is not finished and is in no queue, as one array.

    Returns the exit code; raises ValueError with sbatch's message if it refuses the job.
    """
    count = len(plan.runs)
    waiting = {int(job.partition("_")[2]) for job in in_queue(workdir)}
    done = {index for index, name in enumerate(plan.runs) if ends.read(plan, workdir, name).state == "finished"}
    left = [index for index in range(count) if index not in done | waiting]
    if not left:
        print(f"Nothing to submit: {len(done)} of {count} runs are over, {len(waiting)} are in the queue.")
        return 0
    limit = f"%{max_at_once}" if max_at_once else ""
    batch = [*with_defaults(options, workdir), str(Path(batch_file).absolute())]
    task = ["python", "-m", task_lib.__name__, f"--workdir={workdir}", "--index=%a"]
    command = ["sbatch", "--parsable", f"--array={hostlist.ranges(left, ',')}{limit}", *batch, *task]
    job = _sbatch(command, plan.directory)
    submitted = files.read_json(str(workdir / FILE)) or {"jobs": []}
    files.write_json(str(workdir / FILE), {"jobs": [*submitted["jobs"], job]})
    print(f"job {job}: {len(left)} of {count} runs")
    shown = f"tfdist runs {shlex.quote(str(workdir))}"
    print(f"squeue --me shows them, {shown} their results. The same command again submits what is left.")
    return 0


def with_defaults(options: Sequence[str], workdir: Path) -> list[str]:
    """Returns the options of sbatch, with the name of the sweep and a log in its workdir where they name none."""
    defaults = {"--job-name": workdir.name, "--output": str(workdir).replace("%", "%%") + "/slurm-%A_%a.log"}
    given = {option.partition("=")[0] for option in options}
    return [*options, *(f"{name}={value}" for name, value in defaults.items() if name not in given)]


def _sbatch(command: Sequence[str], directory: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ValueError(f"sbatch refuses the job: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]  # With several clusters: ID;CLUSTER.


def in_queue(workdir: Path) -> set[str]:
    """Returns the tasks of the sweep's arrays in the queue, as ARRAY_TASK; raises ValueError if Slurm does not say."""
    ids = (files.read_json(str(workdir / FILE)) or {}).get("jobs", [])
    if not ids or shutil.which("squeue") is None:
        return set()
    command = ["squeue", "--noheader", "--array", "--me", "--format=%i"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS)
        problem = " ".join(done.stderr.split()) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_ANSWER_SECONDS:g} s"
    if problem:
        raise ValueError(f"squeue fails, so it is not known what is in the queue: {problem}. Try again later.")
    tasks = (re.fullmatch(r"(\d+)_(\d+)", line.strip()) for line in done.stdout.splitlines())
    return {task[0] for task in tasks if task and task[1] in ids}
