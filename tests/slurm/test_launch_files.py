"""The batch files of each site: read by bash, run by a real Slurm and a real mpirun, without the sites' modules."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment
from parameters import slow_except
from processes import until
from slurm_cluster import slurm_cluster

LAUNCH = REPOSITORY / "launch"
SLURM_FILES = sorted(LAUNCH.rglob("*.sbatch"))
PBS_FILES = sorted(LAUNCH.rglob("*.pbs"))
# Tasks of a node, GPUs that a task sees, and its processors, as each file asks for them; two nodes here.
SLURM_ASKED = {
    "slurm/jean_zay.sbatch": (4, 4, 10),
    "slurm/cte_power.sbatch": (4, 4, 40),
    "slurm/piz_daint.sbatch": (1, 0, 12),
    "slurm/it4innovations.sbatch": (8, 8, 16),
    "slurm/apptainer.sbatch": (4, 4, 8),
    "slurm.sbatch": (4, 4, 8),
}
# The jobs of the courses' pages: nodes, tasks, GPUs and processors of a task, and the last words of the command.
COURSES = {
    "courses/jean_zay.sbatch": (2, 8, 4, 10, "docs/courses/jean_zay_fit.py --replicas=8"),
    "courses/piz_daint.sbatch": (2, 2, 0, 12, "--config=configs/courses/cscs_imagenet.py --config.data.batch_size=128"),
    "courses/cte_power.sbatch": (1, 1, 1, 40, "--config=configs/courses/bsc_mnist.py"),
    "courses/cte_power_gpus.sbatch": (1, 1, 4, 160, "--replicas=1,2,4 --epochs=5"),
}
MPI = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine (Debian: openmpi-bin)")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
FLAGS = ["--config=configs/digits.py", "--workdir=runs/x y"]
# Sites have `module` as a function of the shell; here it is one that says what it was asked for.
MODULES = {"BASH_FUNC_module%%": '() { echo "module $*"; }'}


def name(path):
    """The path of a launch file below launch/."""
    return str(path.relative_to(LAUNCH))


@pytest.fixture
def probe(tmp_path):
    """Variables that put tests/support/placement_probe.py in the place of python; it writes into tmp_path."""
    script = tmp_path / "bin" / "python"
    script.parent.mkdir()
    command = f'exec "{sys.executable}" "{REPOSITORY / "tests/support/placement_probe.py"}" "{tmp_path}" "$@"'
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    (tmp_path / "site.sh").write_text(f'export PATH="{script.parent}:$PATH"\n')
    variables = {"TFDIST_SITE": str(tmp_path / "site.sh"), "PYTHONPATH": str(REPOSITORY)}
    # What stands for the container: it is entered as a container would be, by a command before the command.
    return variables | MODULES | {"TFDIST_CONTAINER": f"env IN_CONTAINER=1 PATH={script.parent}:{os.environ['PATH']}"}


def found(directory):
    """The notes of the probe, in rank order."""
    files = sorted(directory.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


def assert_asked(workers, log, *, tasks, gpus, cpus):
    """Asserts how many tasks there are, and how many GPUs and processors each has."""
    assert [worker["worker_spec"]["rank"] for worker in workers] == list(range(tasks)), log.read_text()
    for worker in workers:
        assert worker["environment"]["SLURM_CPUS_PER_TASK"] == str(cpus)
        seen = worker["environment"].get("CUDA_VISIBLE_DEVICES", "").split(",")
        assert sum(gpu.isdecimal() for gpu in seen) == gpus


def bash(*words, env, cwd=REPOSITORY):
    """Runs a file by bash; returns its end and its output as text."""
    return subprocess.run(["bash", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("path", [*SLURM_FILES, *PBS_FILES, LAUNCH / "pbs/train.sh", LAUNCH / "mpi.sh"], ids=name)
def test_bash_can_parse_it(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    assert len(text.splitlines()) < 60
    own = [line for line in text.splitlines() if re.match(r"#(SBATCH|PBS)\b", line)]
    for counted in ("--nodes=", "--ntasks-per-node=", "-l select=", "-l walltime=", "--time="):
        assert sum(counted in line for line in own) <= 1, f"{counted} is said twice"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    directory, features = tmp_path_factory.mktemp("slurm"), "v100-32g,gpu"
    with slurm_cluster(directory, nodes=("n9", "n10"), cpus=160, gpus=8, features=features) as cluster:
        yield cluster


def submit(slurm, env, log, *words, state="COMPLETED", restarts="0"):
    """Submits a job, waits for this state and this number of restarts, and returns the job's id."""
    job = slurm.output(["sbatch", "--parsable", "--account=abc", f"--output={log}", *words], env=env).strip()

    def is_there():
        found = slurm.job(job)
        assert found["JobState"] not in {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"} - {state}, shown()
        return (found["JobState"], found["Restarts"]) == (state, restarts)

    def shown():
        return f"{slurm.job(job)}{log.read_text() if log.exists() else ''}"

    until(is_there, 180, shown, pause=0.1)
    return job


def test_a_slurm_file_runs_another_command_with_the_array_task_number(slurm, probe, tmp_path):
    log, small = tmp_path / "log", ["--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=2"]
    script = ["srun", "python", "my_script.py", "--seed=%a", "runs/x y-%a"]
    submit(slurm, probe, log, "--nodes=2", *small, "--array=3", "launch/slurm.sbatch", *script)
    workers = found(tmp_path)
    assert [worker["arguments"] for worker in workers] == [["my_script.py", "--seed=3", "runs/x y-3"]] * 2
    assert {worker["environment"]["SLURM_CPUS_PER_TASK"] for worker in workers} == {"2"}
    # A study starts its own steps, so the file runs it once. One that is stopped in time is requeued.
    once = ["bash", "-c", "echo once; exit 75"]
    job = submit(slurm, probe, log, "--nodes=1", *small, "launch/slurm.sbatch", *once, state="PENDING", restarts="1")
    slurm.run(["scancel", job])
    assert log.read_text().count("once") == 1


def test_every_slurm_file_is_run_below():
    assert {name(path) for path in SLURM_FILES} == {*SLURM_ASKED, *COURSES}


@pytest.mark.parametrize("file", slow_except(SLURM_ASKED, ["slurm.sbatch"]))
def test_slurm_starts_the_tasks_that_the_file_asks_for(slurm, probe, tmp_path, file):
    tasks, gpus, cpus = SLURM_ASKED[file]
    log = tmp_path / "log"
    submit(slurm, probe, log, "--nodes=2", "--partition=all", f"launch/{file}", *FLAGS)
    workers = found(tmp_path)
    assert_asked(workers, log, tasks=2 * tasks, gpus=gpus, cpus=cpus)
    for worker in workers:
        place = worker["worker_spec"]
        assert place["launcher"] == "slurm" and place["num_workers"] == len(place["addresses"]) == 2 * tasks
        # In a container there is no scontrol: there the file puts the job back, and not tfdist.
        requeue = [] if "apptainer" in file else ["--config.cluster.requeue=true"]
        assert worker["arguments"] == ["-m", "tfdist.main", *FLAGS, *requeue]
        assert worker["cwd"] == str(REPOSITORY)
        assert place["gpu_sharers"] == (tasks if gpus == tasks > 1 else 1) or not gpus
        assert ("IN_CONTAINER" in worker["environment"]) == ("apptainer" in file)
    assert {address.partition(":")[0] for address in workers[0]["worker_spec"]["addresses"]} == {"n9", "n10"}
    loads = [line for line in log.read_text().splitlines() if line.startswith("module load ")]
    assert bool(loads) == (file not in ("slurm.sbatch", "slurm/apptainer.sbatch"))


@pytest.mark.parametrize("file", slow_except(COURSES, ["courses/jean_zay.sbatch"]))
def test_a_job_of_a_course_has_the_tasks_of_its_page(slurm, probe, tmp_path, file):
    nodes, tasks, gpus, cpus, last = COURSES[file]
    log = tmp_path / "log"
    submit(slurm, probe, log, "--partition=all", f"--error={tmp_path}/err", f"launch/{file}", "--more=x y")
    workers = found(tmp_path)
    assert_asked(workers, log, tasks=tasks, gpus=gpus, cpus=cpus)
    for worker in workers:
        assert " ".join(worker["arguments"][:-1]).endswith(last) and worker["arguments"][-1] == "--more=x y"
    assert len({address.partition(":")[0] for address in workers[0]["worker_spec"]["addresses"]}) == nodes


@pytest.mark.parametrize("path", PBS_FILES, ids=name)
def test_pbs_directives_follow_the_grammar_of_qsub(path):
    """There is no PBS for tests on this machine: Debian packages none. So the grammar of qsub's manual is held here."""
    lines = path.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#PBS")]
    # qsub stops to look for directives at the first line that is a command.
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(i < first_command for i, line in enumerate(lines) if line.startswith("#PBS"))
    options = dict(re.fullmatch(r"#PBS -(\w) ([^ ]+)", line).groups() for line in directives if " -l " not in line)
    assert set(options) <= {"N", "q", "j"} and options["j"] == "oe" and len(options["N"]) <= 15
    resources = dict(line.removeprefix("#PBS -l ").split("=", 1) for line in directives if " -l " in line)
    assert set(resources) == {"select", "walltime"}
    chunks = re.fullmatch(r"2:ncpus=(\d+):ngpus=(\d+):mpiprocs=(\d+)", resources["select"])
    assert chunks and chunks[2] == chunks[3] and int(chunks[1]) % int(chunks[2]) == 0
    hours, minutes, seconds = map(int, resources["walltime"].split(":"))
    limit = int(re.search(r"TFDIST_SECONDS:-(\d+)", path.read_text())[1])
    assert limit == 3600 * hours + 60 * minutes + seconds - 120


@MPI
@pytest.mark.parametrize("path", PBS_FILES, ids=name)
def test_a_pbs_file_starts_a_rank_for_each_line_of_the_node_file(probe, tmp_path, path):
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    job = {
        "PBS_O_WORKDIR": str(REPOSITORY),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_JOBID": "123.server",
        "TFDIST_ARGS": "--config=configs/digits.py --workdir=runs/x",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    if "apptainer" not in path.name:
        probe.pop("TFDIST_CONTAINER")
    # PBS runs a copy of the file, from the home directory.
    copy = pathlib.Path(shutil.copy(path, tmp_path / "job.SC"))
    done = bash(copy, env=worker_environment(**job, **AS_ROOT, **probe), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = found(tmp_path)
    assert [(w["worker_spec"]["rank"], w["worker_spec"]["num_workers"]) for w in workers] == [(0, 2), (1, 2)]
    for worker in workers:
        assert worker["worker_spec"]["launcher"] == "mpi" and worker["environment"]["PBS_JOBID"] == "123.server"
        assert worker["arguments"] == ["-m", "tfdist.main", *job["TFDIST_ARGS"].split()]
        assert worker["cwd"] == str(REPOSITORY)
        assert ("IN_CONTAINER" in worker["environment"]) == ("apptainer" in path.name)
    assert "module load" in done.stdout


def test_a_pbs_file_runs_another_command_once(probe, tmp_path):
    variables = {"TFDIST_COMMAND": "python my_script.py", "TFDIST_ARGS": "--seed=%a", "TFDIST_RANKS": "0"}
    variables |= {"PBS_O_WORKDIR": str(REPOSITORY), "PBS_ARRAY_INDEX": "4"}
    probe.pop("TFDIST_CONTAINER")
    bash(LAUNCH / "pbs/karolina.pbs", env=worker_environment(**variables, **probe)).check_returncode()
    assert [worker["arguments"] for worker in found(tmp_path)] == [["my_script.py", "--seed=4"]]


@MPI
def test_mpi_starts_the_ranks_of_named_hosts(probe, tmp_path):
    variables = {"PYTHONPATH": probe["PYTHONPATH"], "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    env = worker_environment(**AS_ROOT, **variables, TFDIST_HOSTS="localhost:2,127.0.0.1:1")
    bash(LAUNCH / "mpi.sh", *FLAGS, env=env).check_returncode()
    workers = found(tmp_path)
    assert [worker["worker_spec"]["rank"] for worker in workers] == [0, 1, 2]
    for worker in workers:
        assert worker["arguments"] == ["-m", "tfdist.main", *FLAGS] and worker["worker_spec"]["launcher"] == "mpi"
    env.pop("TFDIST_HOSTS")
    done = bash(LAUNCH / "mpi.sh", *FLAGS, env=env)
    assert done.returncode != 0 and "Set TFDIST_HOSTS, such as server1:2,server2:2" in done.stderr


@pytest.mark.parametrize("code", [75, 1])
def test_the_pbs_files_ask_the_run_to_save_before_the_time_is_up(tmp_path, code):
    """`timeout` signals mpirun; what it starts here says when it is asked, and ends as tfdist.main does."""
    script = f"trap 'echo asked; exit {code}' USR1; for i in $(seq 600); do sleep 0.1; done"
    (tmp_path / "mpirun").write_text(f"#!/bin/bash\n{script}\n")
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "nodes").write_text("localhost\n")
    variables = {"PBS_O_WORKDIR": str(REPOSITORY), "PBS_NODEFILE": str(tmp_path / "nodes"), "TFDIST_SECONDS": "1"}
    env = worker_environment(**variables, **MODULES, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = bash(LAUNCH / "pbs/karolina.pbs", env=env)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "asked")
    env.pop("PBS_O_WORKDIR")
    done = bash(LAUNCH / "pbs/train.sh", env=env)
    assert done.returncode != 0 and "PBS_O_WORKDIR" in done.stderr and "qsub" in done.stderr


def test_the_container_is_built_of_files_that_exist():
    text = (LAUNCH / "apptainer/tfdist.def").read_text()
    assert re.findall(r"^%(\w+)$", text, re.MULTILINE) == ["files", "post", "environment", "runscript", "test"]
    files = re.search(r"^%files\n((?:    .*\n)+)", text, re.MULTILINE)[1].split()[::2]
    assert all((REPOSITORY / file).exists() for file in files)
    # What the wheel is built of.
    project = (REPOSITORY / "pyproject.toml").read_text()
    included = re.search(r"force-include\]\n((?:\w+ = .*\n)+)", project)[1]
    folders = [line.split()[0] for line in included.splitlines()]
    assert {"pyproject.toml", "README.md", "tfdist", *folders} <= {*files} and len(folders) == 3
    for section in ("post", "environment", "runscript", "test"):
        commands = re.search(rf"^%{section}\n((?:    .*\n)+)", text, re.MULTILINE)[1]
        subprocess.run(["bash", "-n"], input=commands, text=True, check=True)
    for file in ("slurm/apptainer.sbatch", "pbs/apptainer.pbs"):
        assert "apptainer exec --nv " in (LAUNCH / file).read_text()


def test_on_aarch64_pip_installs_all_that_tfdist_requires_but_tensorflow():
    text = (LAUNCH / "apptainer/install.sh").read_text()
    program = re.search(r"bin/python\" -c '\n(.*?)'", text, re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = {re.match(r"[\w-]+", line)[0] for line in done.stdout.splitlines()}
    assert {"keras", "tensorflow-datasets", "ml-collections", "psutil"} <= names and "tensorflow" not in names
