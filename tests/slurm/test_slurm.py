"""What tfdist makes of the variables of a real Slurm, held against where Slurm really ran each task."""

import ast
import dataclasses
import json
import pathlib
import re
import sys

import pytest
from parameters import slow
from processes import REPOSITORY, until
from slurm_cluster import SlurmCluster, slurm_cluster

from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery.gpus import choose_gpus
from tfdist.cluster.discovery.worker_spec import WorkerSpec

PORTS = {"port_base": 10000, "port_count": 10000}

# Each task writes its host and its variables to a file of its own: lines of several tasks could mix.
TELL = """
import json, os, pathlib, socket, sys
task = {"host": socket.gethostname(), "env": dict(os.environ)}
pathlib.Path(sys.argv[1], os.environ["SLURM_PROCID"] + ".json").write_text(json.dumps(task))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One task of a step: the host that it ran on, its variables, and what tfdist makes of them."""

    host: str
    env: dict[str, str]
    spec: WorkerSpec


def step(slurm: SlurmCluster, directory: pathlib.Path, launch: str) -> list[Task]:
    """Runs `launch`, which starts the tasks of a step, and returns these in rank order."""
    slurm.output([*launch.split(), sys.executable, "-c", TELL, directory], timeout=30)
    found = sorted((json.loads(path.read_text()) for path in directory.glob("*.json")), key=_rank)
    assert [_rank(task) for task in found] == list(range(len(found)))
    return [Task(task["host"], task["env"], environment.resolve(task["env"], **PORTS)) for task in found]


def _rank(task: dict) -> int:
    return int(task["env"]["SLURM_PROCID"])


def check(tasks: list[Task]) -> None:
    """Every task knows where every other one runs, and all know the same."""
    really = [task.host for task in tasks]
    for rank, task in enumerate(tasks):
        own = task.spec
        if len(tasks) > 1:  # A worker alone has nobody to be found by.
            pairs = [address.rsplit(":", 1) for address in own.addresses]
            assert [host for host, _ in pairs] == really
            assert all(10000 <= int(port) < 20000 for _, port in pairs)
            assert len(set(own.addresses)) == len(tasks)
            assert own.addresses == tasks[0].spec.addresses
            assert own.addresses[rank].endswith(f":{own.port}")
        assert (own.launcher, own.rank, own.num_workers) == ("slurm", rank, len(tasks))
        assert own.local_rank == int(task.env["SLURM_LOCALID"])
        assert own.local_size == really.count(task.host)


# The hosts are what Slurm 22.05 does with these options, so that a row cannot lose its point unseen.
@pytest.mark.parametrize(
    ("launch", "hosts"),
    [
        slow("srun -N2 --ntasks-per-node=1", "n9 n10"),
        ("srun -N2 --ntasks-per-node=2", "n9 n9 n10 n10"),
        slow("srun -N2 --ntasks-per-node=2 -m block", "n9 n9 n10 n10"),
        ("srun -N2 --ntasks-per-node=2 -m cyclic", "n9 n10 n9 n10"),
        slow("srun -N2 --ntasks-per-node=2 -m cyclic:block,NoPack", "n9 n10 n9 n10"),
        slow("srun -N2 --ntasks-per-node=2 -m *:cyclic", "n9 n9 n10 n10"),
        # Without --ntasks-per-node Slurm fills the first node as far as it can.
        ("srun -N2 -n4", "n9 n9 n9 n10"),
        slow("srun -N2 -n4 -m cyclic", "n9 n10 n9 n9"),
        slow("srun -N2 -n3", "n9 n9 n10"),
        slow("srun -N2 -n3 -m cyclic", "n9 n10 n9"),
        slow("srun -N2 -n4 -m plane=1", "n9 n10 n9 n10"),
        ("srun -N2 -n8 -m plane=2 --ntasks-per-node=4", "n9 n9 n10 n10 n9 n9 n10 n10"),
        slow("srun -N2 -n7 -m plane=3", "n9 n9 n9 n10 n9 n9 n9"),
        slow("srun -n3 -w n10", "n10 n10 n10"),
        slow("srun -n1", "n9"),
        slow("srun -n1 -w n10", "n10"),
        # A step of an allocation, with fewer nodes than that, or distributed as that says.
        slow("salloc -N2 --ntasks-per-node=2 srun -N1 -n2 -w n10", "n10 n10"),
        slow("salloc -N2 --ntasks-per-node=2 srun -n1", "n9"),
        slow("salloc -N2 --ntasks-per-node=2 -m cyclic srun", "n9 n10 n9 n10"),
        ("salloc -N2 --ntasks-per-node=2 -m cyclic srun -m block", "n9 n9 n10 n10"),
        # Two parts of a heterogeneous job.
        ("srun -N1 -n3 -m block : -N1 -n1 -m block", "n9 n9 n9 n10"),
    ],
)
def test_every_rank_is_sought_where_slurm_runs_it(slurm, tmp_path, launch, hosts):
    tasks = step(slurm, tmp_path, launch)
    check(tasks)
    assert " ".join(task.host for task in tasks) == hosts


def test_host_names_with_several_numbers_and_suffixes(tmp_path):
    nodes = ("r2n10", "r2n9", "r10n1", "r1n1-ib", "r1n2-ib")
    (tmp_path / "tasks").mkdir()
    with slurm_cluster(tmp_path / "slurm", nodes=nodes) as slurm:
        tasks = step(slurm, tmp_path / "tasks", "srun -N5 --ntasks-per-node=2 -m cyclic")
    check(tasks)
    assert {task.host for task in tasks} == set(nodes)


@pytest.mark.parametrize(("options", "said"), [("-N2 --ntasks-per-node=2", "4 tasks"), ("-N2", "2 nodes")])
def test_a_batch_script_without_srun_is_one_worker_and_says_so(slurm, tmp_path, options, said):
    script = f"#!/bin/bash\n#SBATCH {options}\nexec {sys.executable} {tmp_path}/tell.py {tmp_path}\n"
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "job.sbatch").write_text(script)
    slurm.output(["sbatch", "--wait", "--output=/dev/null", tmp_path / "job.sbatch"])
    alone = environment.resolve(json.loads((tmp_path / "0.json").read_text())["env"], **PORTS)
    assert (alone.launcher, alone.num_workers) == ("local", 1)
    assert said in alone.note and "srun" in alone.note


@pytest.mark.parametrize(
    ("launch", "listed", "used"),
    [
        # Slurm shows each task one GPU, or all GPUs of its node.
        slow("srun -N2 --ntasks-per-node=2 --gpus-per-task=1", "0 1 0 1", "0 1 0 1"),
        slow("srun -N2 --ntasks-per-node=2 --gpus-per-node=2", "0,1 0,1 0,1 0,1", "0 1 0 1"),
        ("srun -N2 --ntasks-per-node=2 --gpus-per-node=2 -m cyclic", "0,1 0,1 0,1 0,1", "0 0 1 1"),
        slow("srun -N2 --ntasks-per-node=2 --gres=gpu:2 --gpu-bind=single:1", "0 1 0 1", "0 1 0 1"),
        slow("srun -N2 --ntasks-per-node=1 --gpus-per-task=2", "0,1 0,1", "0,1 0,1"),
        slow("srun -N2 --ntasks-per-node=1 --gpus-per-node=1", "0 0", "0 0"),
        slow("salloc -N2 --ntasks-per-node=2 --gpus-per-task=1 srun", "0 1 0 1", "0 1 0 1"),
        # The second node has one task, which is to hold as many GPUs as each task of the first.
        ("srun -N2 -n3 --gpus-per-node=2", "0,1 0,1 0,1", "0 1 0"),
        # No GPUs.
        slow("srun -N2 --ntasks-per-node=2", "- - - -", "- - - -"),
        ("salloc -N2 --ntasks-per-node=2 --gres=gpu:2 srun --gres=none", "- - - -", "- - - -"),
    ],
)
def test_the_gpus_of_a_node_are_divided_among_its_tasks(slurm, tmp_path, monkeypatch, launch, listed, used):
    monkeypatch.delitem(slurm.env, "CUDA_VISIBLE_DEVICES", raising=False)
    tasks = step(slurm, tmp_path, launch)
    check(tasks)
    # TensorFlow lists the devices that CUDA_VISIBLE_DEVICES names; these nodes have no other ones.
    names = [task.env.get("CUDA_VISIBLE_DEVICES", "NoDevFiles").replace("NoDevFiles", "-") for task in tasks]
    assert " ".join(names) == listed
    chosen = []
    for task, devices in zip(tasks, names, strict=True):
        devices = [device for device in devices.split(",") if device != "-"]
        indices = choose_gpus(task.spec, len(devices))
        chosen.append(",".join(devices[index] for index in indices) or "-")
    assert " ".join(chosen) == used


# Listens at the port that tfdist computes, until the tasks of all steps do.
LISTEN = """
import os, pathlib, socket, sys, time
from tfdist.cluster.discovery import environment
directory, expected = pathlib.Path(sys.argv[1]), int(sys.argv[2])
spec = environment.resolve(os.environ, port_base=10000, port_count=10000)
with socket.create_server(("", spec.port)):
    (directory / f"{spec.job} rank {spec.rank}").write_text(f"{socket.gethostname()}:{spec.port}")
    deadline = time.monotonic() + 20
    while len(list(directory.iterdir())) < expected:
        if time.monotonic() > deadline:
            sys.exit("the other tasks have not come")
        time.sleep(0.05)
"""


@pytest.mark.parametrize("kind", ["jobs", slow("steps of a job")])
def test_at_once_on_the_same_nodes_they_listen_at_different_ports(slurm, tmp_path, kind):
    (tmp_path / "listen.py").write_text(LISTEN)
    (tmp_path / "listening").mkdir()
    srun = f"srun --overlap -N2 --ntasks-per-node=2 {sys.executable} {tmp_path}/listen.py {tmp_path}/listening 12"
    # Each by its own number: "wait -n" knows nothing of one that ended together with another.
    started = " ".join(f"{srun} & pids+=($!);" for _ in range(3))
    script = f"{started} for pid in ${{pids[@]}}; do wait $pid || exit; done"
    allocate = [] if kind == "jobs" else ["salloc", "-N2", "--ntasks-per-node=2"]
    slurm.output([*allocate, "bash", "-c", script], timeout=40)
    listening = {path.name: path.read_text() for path in (tmp_path / "listening").iterdir()}
    assert len(listening) == len(set(listening.values())) == 12
    assert {address.partition(":")[0] for address in listening.values()} == {"n9", "n10"}


# A worker without TensorFlow, one of whose kind is killed, or fails, when all have met.
LOSE = """
import os, signal, sys, time
from tfdist import config
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import heartbeat_monitor, keys, rendezvous, watchdog
place = environment.resolve(os.environ, port_base=10000, port_count=10000)
listener = watchdog.listen(place)
port = {"heartbeat_port": listener.getsockname()[1]} if listener else {}
members = rendezvous.rendezvous(place, must_match={}, seconds=60, metadata=port)
options = config.ClusterOptions(connect_seconds=20)
own = keys.load(place.job, os.environ)
watchdog.start(rank=place.rank, members=members, listener=listener, options=options, key=own).tell({"started": True})
slurm_requeue.enable_requeue(place.rank, interruption.StopRequest(), lambda: True)
time.sleep(1)
if str(place.rank) in sys.argv[1].split(","):
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    heartbeat_monitor.reserve_exit()
    heartbeat_monitor.announce_failure("the disk is full.")
    os._exit(1)
time.sleep(600)
"""


def run_job(slurm: SlurmCluster, directory: pathlib.Path, options: str, command: str) -> tuple[str, str, str]:
    """Runs a batch job until it fails or comes back to the queue; returns its id, its state, and what it wrote."""
    log, file = directory / "log", directory / "job.sbatch"
    file.write_text(f"#!/bin/bash\n#SBATCH {options} --requeue --output={log}\nPYTHONPATH={REPOSITORY} {command}\n")
    job = slurm.output(["sbatch", "--parsable", file]).strip()

    def end() -> str:
        found = slurm.job(job)
        state = found["JobState"]
        return state if state == "FAILED" or (state, found["Restarts"]) == ("PENDING", "1") else ""

    state = until(end, 300, lambda: f"{slurm.job(job)}\n{log.read_text()}", pause=0.1)
    slurm.output(["scancel", job])
    return job, state, log.read_text()


@pytest.mark.parametrize(
    ("victim", "how", "state"),
    [
        (0, "killed", "PENDING"),
        slow("0,1", "killed", "PENDING"),
        slow(2, "killed", "PENDING"),
        slow(0, "failed", "FAILED"),
    ],
)
def test_a_job_that_loses_a_worker_comes_back_and_one_that_fails_does_not(slurm, tmp_path, victim, how, state):
    (tmp_path / "lose.py").write_text(LOSE)
    srun = f"srun -m cyclic {sys.executable} {tmp_path}/lose.py {victim} {how}"
    job, found, said = run_job(slurm, tmp_path, "-N2 -n3", srun)
    assert found == state, said
    told = said.count(f"tfdist: job {job} requeued")
    # Slurm ends the worker that has asked for it, sometimes before it can say so.
    assert said.count(" requeued") == told <= (how == "killed")


# A worker whose TensorFlow does not start, and lets no thread of Python run; nothing listens at the others' ports.
HANG = """
import ctypes, os, sys
from tfdist import config
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.control import keys, listener, watchdog
from tfdist.cluster.discovery import slurm_job
rank, size = map(int, sys.argv[1:])
slurm_requeue.enable_requeue(rank, interruption.StopRequest(), slurm_job.few_restarts)
here = {"address": "localhost:1", "host": "n9", "pid": os.getpid(), "heartbeat_port": 1}
members = [here | {"rank": r} for r in range(size)]
waiting, options = listener.listen(0) if rank == 0 else None, config.ClusterOptions(connect_seconds=0.5)
watchdog.start(rank=rank, members=members, listener=waiting, options=options, key=keys.Key(b"k"))
ctypes.PyDLL(None).sleep(60)
"""


@pytest.mark.parametrize(
    ("rank", "restarts", "state"), [slow(0, "", "PENDING"), slow(1, "2", "PENDING"), slow(0, "3", "FAILED")]
)
def test_a_job_whose_tensorflow_does_not_start_comes_back_a_few_times(slurm, tmp_path, rank, restarts, state):
    (tmp_path / "hang.py").write_text(HANG)
    srun = f"SLURM_RESTART_COUNT={restarts} srun {sys.executable} {tmp_path}/hang.py {rank} 3"
    _, found, said = run_job(slurm, tmp_path, "-n1", srun)
    assert found == state, said
    assert f"tfdist: worker {rank}: worker {1 if rank == 0 else 0} (host n9, pid " in said
    assert ("job not requeued: this attempt saved no new checkpoint" in said) == (state == "FAILED")


PUT_BACK = """
import os, signal, subprocess, sys
from tfdist.cluster import interruption, slurm_requeue
progressed, cancelled, reason, rank = sys.argv[1:]
if cancelled == "yes":
    interruption.ignore_signals()
    subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True)
slurm_requeue.enable_requeue(int(rank), interruption.StopRequest(reason=reason), lambda: progressed == "yes")
slurm_requeue.requeue()
"""


def test_one_task_of_a_job_array_is_requeued_alone(slurm, tmp_path):
    (tmp_path / "requeue.py").write_text(PUT_BACK)
    (tmp_path / "job.sbatch").write_text(
        f"""#!/bin/bash
#SBATCH -N1 -n1 --array=0-2 --requeue --output={tmp_path}/log-%a --open-mode=append
cd {REPOSITORY}
if [ "$SLURM_ARRAY_TASK_ID" = 1 ] && [ ! -e {tmp_path}/requeued ]; then
    touch {tmp_path}/requeued
    srun {sys.executable} {tmp_path}/requeue.py yes no SIGUSR1 0
fi
sleep 600
"""
    )
    job = slurm.output(["sbatch", "--parsable", tmp_path / "job.sbatch"]).strip()

    def tasks() -> list[tuple[str, str]]:
        each = [slurm.job(f"{job}_{number}") for number in range(3)]
        return [(task["Restarts"], task["JobState"]) for task in each]

    until(
        lambda: tasks()[1][0] == "1",
        shown=lambda: f"{[path.read_text() for path in tmp_path.glob('log-*')]}",
        pause=0.1,
    )
    (first, _, last) = tasks()
    slurm.output(["scancel", job])
    assert first == last == ("0", "RUNNING")


@pytest.mark.parametrize(
    ("prefix", "arguments", "said"),
    [
        ("srun -n1", "yes no SIGUSR1 0", "scontrol failed: "),
        (
            "srun -n1 env PATH=",
            "yes no SIGUSR1 0",
            "scontrol not found. In a container, mount Slurm's programs",
        ),
        (
            "srun -n1",
            "no no SIGUSR1 0",
            "this attempt saved no new checkpoint after its first step, so a restart would not either",
        ),
        ("srun -n1", "yes yes SIGUSR1 0", "Slurm is ending it already (C"),  # COMPLETING, or CANCELLED by then
        ("", "yes no SIGUSR1 0", "SLURM_JOB_ID is not set: not a Slurm job"),
        # Ended by the user; or another worker does it.
        ("srun -n1", "yes no SIGTERM 0", None),
        ("srun -n1", "yes no SIGINT 0", None),
        ("srun -n1", "yes no SIGUSR1 1", None),
    ],
)
def test_a_line_says_why_a_job_is_not_requeued(slurm, prefix, arguments, said):
    python = [*prefix.split(), sys.executable, "-c", PUT_BACK]
    done = slurm.run([*python, *arguments.split()], timeout=120)
    lines = [line for line in done.stderr.splitlines() if "tfdist" in line]
    if said is None:
        assert lines == [] and done.returncode == 0
    else:
        (line,) = lines
        assert line.startswith(f"tfdist: job not requeued: {said}"), line
        assert line.endswith(". Run the same command to resume")


def test_the_messages_that_the_page_explains_are_those_of_the_code():
    page = (REPOSITORY / "docs" / "slurm.md").read_text()
    rows = [line for line in page.split("| Message |")[1].splitlines() if line.startswith("| `")]
    explained = [message for row in rows for message in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(explained) > 15
    said = "\n".join(text for path in sorted(REPOSITORY.glob("tfdist/**/*.py")) for text in texts(path))
    assert [message for message in explained if message not in said] == []


def texts(path: pathlib.Path) -> list[str]:
    """The texts of a module, with "..." for what is filled in."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(p.value if isinstance(p, ast.Constant) else "..." for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_the_variables_that_the_page_lists_are_those_that_are_read():
    page = (REPOSITORY / "docs" / "slurm.md").read_text()
    rows = [line for line in page.split("| Variables |")[1].split("\n\n")[0].splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    modules = [
        REPOSITORY / f"tfdist/cluster/{name}.py"
        for name in ("discovery/launchers/slurm", "discovery/worker_spec", "discovery/slurm_job", "slurm_requeue")
    ]
    read = {text for module in modules for text in texts(module)}
    beginnings = {"SLURM_STEP"}
    assert listed == {text for text in read if re.fullmatch(r"(SLURMD?|CUDA)_[A-Z_]+", text)} - beginnings
