"""Places of workers, from dictionaries as launchers really set them (Slurm 22.05, Open MPI 4.1, MPICH 4)."""

import json
import os
import subprocess
import sys

import pytest
from launching import REPOSITORY

from tfdist.cluster.discovery import environment, hostlist
from tfdist.cluster.discovery.gpus import choose_gpus, held_gpus
from tfdist.cluster.discovery.worker_spec import WorkerSpec

PORTS = {"port_base": 10000, "port_count": 10000}


def resolve(env: dict[str, str], **ports: int) -> WorkerSpec:
    return environment.resolve(env, **(PORTS | ports))


def slurm(rank, where, nodelist="n9", tasks_per_node="1", job=1000, step=0, **more: str) -> dict[str, str]:
    """The environment of one task, in a step whose tasks are at `where`: (node, its index, index of the task on it)."""
    node, node_index, local = where[rank]
    return {
        "SLURMD_NODENAME": node,
        "SLURM_GTIDS": ",".join(str(r) for r, (_, n, _) in enumerate(where) if n == node_index),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node_index),
        "SLURM_NTASKS": str(len(where)),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_TASKS": str(len(where)),
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_TASKS_PER_NODE": tasks_per_node,
    } | more


TWO_ON_ONE = [("n9", 0, 0), ("n9", 0, 1)]
FOUR_ON_TWO = [("n9", 0, 0), ("n9", 0, 1), ("n10", 1, 0), ("n10", 1, 1)]
FOUR_ON_TWO_CYCLIC = [("n9", 0, 0), ("n10", 1, 0), ("n9", 0, 1), ("n10", 1, 1)]
PLANES_OF_3 = [*((n, i, j) for i, n in enumerate(("a9", "a10")) for j in range(3)), ("b2", 2, 0), ("b2", 2, 1)]
PLANES_OF_3 += [("a9", 0, 3), ("a10", 1, 3)]
CYCLIC_UNEVEN = [("n8", 0, 0), ("n9", 1, 0), ("n10", 2, 0), ("n8", 0, 1), ("n8", 0, 2), ("n8", 0, 3), ("n8", 0, 4)]
ODD_NAMES = "a[9-10],b2,r1n[1-2],r2n1-ib,r2n2-ib,x[08-10]"
ODD_NAMES_IN_ORDER = ["a9", "a10", "b2", "r1n1", "r1n2", "r2n1-ib", "r2n2-ib", "x08", "x09", "x10"]

# name -> (nodes, tasks per node, variables of the distribution, where Slurm 22.05 put the ranks). tests/slurm has more.
STEPS = {
    "block": ("n[9-10]", "2(x2)", {}, FOUR_ON_TWO),
    "cyclic": ("n[9-10]", "2(x2)", {"SLURM_DISTRIBUTION": "cyclic:block,nopack"}, FOUR_ON_TWO_CYCLIC),
    "block, uneven": ("n[8-10]", "2,1(x2)", {}, [("n8", 0, 0), ("n8", 0, 1), ("n9", 1, 0), ("n10", 2, 0)]),
    "cyclic, uneven": ("n[8-10]", "5,1(x2)", {"SLURM_DISTRIBUTION": "cyclic"}, CYCLIC_UNEVEN),
    "planes": ("a[9-10],b2", "4(x2),2", {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "3"}, PLANES_OF_3),
    "odd names": (ODD_NAMES, "1(x10)", {}, [(node, i, 0) for i, node in enumerate(ODD_NAMES_IN_ORDER)]),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_task_of_a_slurm_step_finds_the_same_addresses_and_its_own(name):
    nodelist, tasks_per_node, distribution, where = STEPS[name]
    places = [resolve(slurm(r, where, nodelist, tasks_per_node, **distribution)) for r in range(len(where))]
    addresses = places[0].addresses
    assert [hostlist.split_address(address)[0] for address in addresses] == [node for node, _, _ in where]
    assert len(set(addresses)) == len(where)
    for rank, (place, (node, _, local)) in enumerate(zip(places, where, strict=True)):
        assert place.addresses == addresses
        assert (place.launcher, place.rank, place.num_workers, place.job) == ("slurm", rank, len(where), "1000.0")
        assert addresses[rank] == f"{node}:{place.port}"
        assert (place.local_rank, place.local_size) == (local, [n for n, _, _ in where].count(node))
        assert 10000 <= place.port < 20000


def test_addresses_of_ipv6_have_brackets(tmp_path):
    nodefile = tmp_path / "nodes"
    nodefile.write_text("fd00::1\nfd00::2\n")
    pbs = {"PBS_JOBID": "7.head", "PBS_NODENUM": "1", "PBS_TASKNUM": "2", "PBS_NODEFILE": str(nodefile)}
    nodes = [("fd00::1", 0, 0), ("fd00::2", 1, 0)]
    for env in (pbs, slurm(1, nodes, "fd00::1,fd00::2", "1(x2)")):
        assert [hostlist.split_address(one)[0] for one in resolve(env).addresses] == ["fd00::1", "fd00::2"]
    assert hostlist.split_address(resolve(slurm(0, nodes[:1], "fd00::1")).addresses[0])[0] == "fd00::1"


SBATCH = {"SLURM_JOB_ID": "14", "SLURM_JOB_NODELIST": "n[8-9]", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "3,1"}
# What sbatch passes on when it is called in an interactive step.
LEFT_OVER = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n5"}
LEFT_OVER |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n5"}
NODES = {"SLURM_JOB_ID": "14", "SLURM_JOB_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("env", "launcher", "said"),
    [
        (SBATCH, "local", "4 tasks"),
        (SBATCH | LEFT_OVER, "slurm", "4 tasks"),
        (NODES, "local", "2 nodes"),
        (NODES | LEFT_OVER | {"SLURM_STEP_ID": "4294967290"}, "slurm", "2 nodes"),  # The shell of salloc may be a step.
        (NODES | LEFT_OVER, "slurm", ""),
    ],
)
def test_an_allocation_without_srun_is_one_worker_and_a_note(env, launcher, said):
    """Half of the allocation was idle, without a word."""
    place = resolve(env)
    assert (place.launcher, place.rank, place.num_workers) == (launcher, 0, 1)
    assert said in place.note and ("srun" in place.note) == bool(said)


def test_ports_are_in_their_range_and_no_job_step_restart_or_array_task_meets_another():
    seen = set()
    for job in range(1000, 1019):  # The tasks of an array have consecutive job ids.
        for step, restarts in ((0, ""), (0, "1"), (0, "2"), (1, ""), (2, "")):
            place = resolve(slurm(0, TWO_ON_ONE, "n9", "2", job, step, SLURM_RESTART_COUNT=restarts))
            ports = {*(hostlist.split_address(one)[1] for one in place.addresses), place.heartbeat_port}
            assert len(ports) == 3 and not ports & seen and 10000 <= min(ports) <= max(ports) < 20000
            seen |= ports
    for tasks in (1, 17, 128):
        env = slurm(0, [("n9", 0, i) for i in range(tasks)], "n9", str(tasks), job=4294967)
        place = resolve(env, port_base=12345, port_count=130)
        ports = {hostlist.split_address(address)[1] for address in place.addresses}
        assert len(ports) == tasks and min(ports) >= 12345 and max(ports) < 12345 + 130
        assert place.heartbeat_port not in ports
    assert resolve(env, port_count=128).heartbeat_port == 0  # Any port.
    with pytest.raises(ValueError, match=r"port_count must be at least 128.* 127"):
        resolve(env, port_count=127)


# As Slurm 22.05 sets them for `srun --ntasks-per-node=2 <option>`: variables of the two tasks of a node with 4 GPUs,
# the GPUs that TensorFlow lists in each, those that it shall use there, and what they are called on the node.
PAIRS = [("GPU 0", "GPU 1"), ("GPU 2", "GPU 3")]
GPUS = {
    "--gpus-per-task=1 in cgroups": (
        [{"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": i, "SLURM_GPUS_ON_NODE": "2"} for i in "01"],
        *(1, [(0,), (0,)], [("GPU 0",), ("GPU 1",)]),
    ),
    # Without SLURM_GPUS_ON_NODE, as some versions: each of the tasks has as many GPUs as its node has tasks, or more.
    "--gpus-per-task=2, number on the node not set": (
        [{"CUDA_VISIBLE_DEVICES": i, "SLURM_STEP_GPUS": i, "SLURM_GPUS_PER_TASK": "2"} for i in ("0,1", "2,3")],
        *(2, [(0, 1), (0, 1)], PAIRS),
    ),
    "--gpus-per-task=a100:2 --gpu-bind=none, number on the node not set": (
        [{"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_GPUS_PER_TASK": "a100:2"}] * 2,
        *(4, [(0, 1), (2, 3)], [(), ()]),
    ),
    "--gpus-per-task=1 --gpu-bind=none": ([{"SLURM_GPUS_ON_NODE": "2"}] * 2, 4, [(0, 1), (2, 3)], [(), ()]),
    "MIG slices, one for each task": (
        [{"CUDA_VISIBLE_DEVICES": f"MIG-{i}", "SLURM_GPUS_ON_NODE": "2"} for i in "ab"],
        *(1, [(0,), (0,)], [("GPU MIG-a",), ("GPU MIG-b",)]),
    ),
    "no GPU of those on the node": ([{"CUDA_VISIBLE_DEVICES": "NoDevFiles"}] * 2, 0, [(), ()], [(), ()]),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus_of_slurm_tasks(name):
    tasks, num_listed, expected, names = GPUS[name]
    for rank, variables in enumerate(tasks):
        place = resolve(slurm(rank, TWO_ON_ONE, "n9", "2", **variables))
        assert choose_gpus(place, num_listed) == expected[rank]
        assert held_gpus(place, expected[rank]) == names[rank]


def test_gpus_of_tf_config():
    env = tf_config("worker", 1, worker=["a:1", "a:2"])
    assert choose_gpus(resolve(env), 4) == (2, 3)
    assert choose_gpus(resolve(env | {"CUDA_VISIBLE_DEVICES": "1,3"}), 2) == (0, 1)  # Each has its own.


def test_a_task_with_a_gpu_of_its_own_uses_it_where_other_nodes_have_more_tasks():
    """Tasks that share the GPUs of their nodes: tests/slurm/test_slurm.py."""
    where = [("n9", 0, 0), ("n9", 0, 1), ("n10", 1, 0)]
    one = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "1", "SLURMD_TRES_BIND": "gpu:per_task:1"}
    assert choose_gpus(resolve(slurm(2, where, "n[9-10]", "2,1", **one)), 1) == (0,)


def test_more_tasks_than_gpus_are_refused():
    one = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "1"}
    with pytest.raises(ValueError, match=r"2 tasks on one host share 1 GPU.*--gpus-per-node"):
        choose_gpus(resolve(slurm(1, TWO_ON_ONE, "n9", "2", **one)), 1)


def tf_config(kind: str, index: object, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_tf_config_with_a_chief():
    cluster = {"worker": ["b:2", "a:1"], "chief": ["a:9"], "evaluator": ["e:1"]}
    ranks = {("chief", 0): 0, ("worker", 0): 1, ("worker", 1): 2}
    for (kind, index), rank in ranks.items():
        place = resolve(tf_config(kind, index, **cluster))
        assert place.addresses == ("a:9", "b:2", "a:1")
        assert (place.launcher, place.rank, place.num_workers) == ("tf_config", rank, 3)
        assert place.port == (9, 2, 1)[rank]
        assert 10000 <= place.heartbeat_port < 20000
        assert (place.local_rank, place.local_size) == ((0, 2), (0, 1), (1, 2))[rank]


@pytest.mark.parametrize("text", ["", " ", "{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}'])
def test_a_tf_config_without_a_cluster_does_not_count(text):
    assert resolve({"TF_CONFIG": text}) == WorkerSpec(launcher="local")


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1400176640.0;tcp://192.0.2.2,10.0.0.2:39317;tcp6://[fd00::2]:46011",
    "PMIX_NAMESPACE": "1400176641",
    "PMIX_RANK": "1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def of_rank_1_of_2(*names: str, **more: str) -> dict[str, str]:
    """The variables with these names of the rank, the number of ranks, and those on the host."""
    return dict(zip(names, ("1", "2", "1", "2"), strict=True)) | more


MVAPICH = of_rank_1_of_2(*(f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
PALS = of_rank_1_of_2("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE", PALS_APID="7a")
OTHER_PMI = of_rank_1_of_2("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
MPI = {"Open MPI": OPEN_MPI, "MPICH": HYDRA, "MVAPICH2": MVAPICH, "PALS": PALS, "another": OTHER_PMI}


@pytest.mark.parametrize("name", MPI)
def test_mpi_on_one_host(name):
    place = resolve(MPI[name])
    assert (place.launcher, place.rank, place.num_workers) == ("mpi", 1, 2)
    assert (place.local_rank, place.local_size, place.chiefs) == (1, 2, ())
    assert len(set(place.addresses)) == 2 and place.addresses[1] == f"localhost:{place.port}"
    assert 10000 <= place.port < 20000 and place.heartbeat_port == place.port + 1
    assert choose_gpus(place, 4) == (2, 3)


def test_ranks_of_mpich_behind_a_script_find_each_other():
    program = "import os; from tfdist.cluster.discovery import environment; "
    program += "print(*environment.resolve(dict(os.environ), port_base=10000, port_count=10000).addresses)"
    words = ["sh", "-c", f'{sys.executable} -c "$1"; exit $?', "sh", program]  # The shell waits, as a script's does.
    kept = {name: os.environ[name] for name in ("PATH", "HOME")} | HYDRA
    ranks = [kept | {"PMI_RANK": rank, "MPI_LOCALRANKID": rank} for rank in "01"]
    first, second = (subprocess.check_output(words, env=env, cwd=REPOSITORY, text=True) for env in ranks)
    assert first == second and first.startswith("localhost:")


def test_two_mpiruns_on_one_host_do_not_meet():
    ports = [resolve(OPEN_MPI | {"PMIX_NAMESPACE": str(1400176641 + (i << 16))}).port for i in range(5)]
    assert len(set(ports)) == 5


def over_two_hosts(env: dict[str, str], rank: int, **more: str) -> dict[str, str]:
    """The environment of one of three ranks; ranks 0 and 1 are on one host."""
    return env | {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "01"[rank] if rank < 2 else "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2" if rank < 2 else "1",
        **more,
    }


def test_mpi_over_several_hosts_knows_where_rank_0_may_be(tmp_path):
    places = [resolve(over_two_hosts(OPEN_MPI, rank)) for rank in range(3)]
    port = places[0].port
    assert all(place.addresses == () for place in places)
    assert places[2].chiefs == (f"192.0.2.2:{port}", f"10.0.0.2:{port}", f"[fd00::2]:{port}")
    assert places[1].port != port and places[2].port == port  # Rank 2 is the first on its host.
    nodefile = tmp_path / "nodes"
    nodefile.write_text("n9\nn9\nn10\n")
    assert resolve(over_two_hosts(OPEN_MPI, 2, PBS_NODEFILE=str(nodefile))).chiefs[0] == f"n9:{port}"
    assert resolve(over_two_hosts(OPEN_MPI, 2, SLURM_JOB_NODELIST="n[9-10]")).chiefs[0] == f"n9:{port}"
    # Of a name that a user gives: test_launchers.py.


# The daemon that Open MPI's mpirun starts on a second node is a Slurm step of its own; a rank inherits its variables.
INSIDE_A_STEP = slurm(0, [("n10", 0, 0)], "n10", step=2)
FOUR_TASKS = slurm(2, FOUR_ON_TWO, "n[9-10]", "2(x2)")
OF_TWO = tf_config("worker", 1, worker=["a:1", "b:1"])
ORDER = {
    "mpirun in an sbatch script": (SBATCH | OPEN_MPI, "mpi", 1, 2),
    "mpirun on a second node of an allocation": (INSIDE_A_STEP | OPEN_MPI, "mpi", 1, 2),
    "MPICH's mpiexec in an allocation": (INSIDE_A_STEP | HYDRA, "mpi", 1, 2),
    "srun --mpi=pmi2": (FOUR_TASKS | {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_JOBID": "1000.0"}, "slurm", 2, 4),
    "srun on HPE Cray EX": (
        FOUR_TASKS | PALS | {"PALS_RANKID": "2", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "0", "PALS_APID": "1000.0"},
        *("slurm", 2, 4),
    ),
    "mpiexec of PALS in a Slurm step": (INSIDE_A_STEP | PALS, "mpi", 1, 2),
    "srun --mpi=pmix": (FOUR_TASKS | {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.1000.0"}, "slurm", 2, 4),
    "TF_CONFIG for each task of a step": (slurm(0, TWO_ON_ONE, "n9", "2") | OF_TWO, "tf_config", 1, 2),
    "TF_CONFIG and mpirun": (OPEN_MPI | OF_TWO, "tf_config", 1, 2),
    "an empty TF_CONFIG in a step": (FOUR_TASKS | {"TF_CONFIG": "{}"}, "slurm", 2, 4),
    "nothing": ({"PATH": "/bin"}, "local", 0, 1),
}


@pytest.mark.parametrize("name", ORDER)
def test_which_launcher_counts(name):
    env, launcher, rank, num_workers = ORDER[name]
    place = resolve(env)
    assert (place.launcher, place.rank, place.num_workers) == (launcher, rank, num_workers)


WITHOUT_URI = {name: value for name, value in OPEN_MPI.items() if name != "OMPI_MCA_orte_hnp_uri"}
LEFT_OVER_TF_CONFIG = tf_config("worker", 0, worker=["localhost:2222"])


@pytest.mark.parametrize(
    ("env", "named"),
    [
        (FOUR_TASKS | {"SLURM_DISTRIBUTION": "cyclic"}, "Rank 2 should be task"),
        (FOUR_TASKS | {"SLURM_GTIDS": "1,2"}, "Rank 2 should be task"),
        (FOUR_TASKS | {"SLURM_STEP_NUM_TASKS": "5"}, "SLURM_STEP_NUM_TASKS=5"),
        (FOUR_TASKS | {"SLURM_PROCID": "4"}, "het-group"),
        (FOUR_TASKS | {"SLURM_PROCID": "one"}, "SLURM_PROCID .*'one'"),
        (FOUR_TASKS | {"SLURM_STEP_TASKS_PER_NODE": "2x2"}, "'2x2'"),
        (FOUR_TASKS | {"SLURM_STEP_NODELIST": "n[9-10"}, r"'n\[9-10'"),
        (FOUR_TASKS | {"SLURM_DISTRIBUTION": "plane"}, "not set: SLURM_DIST_PLANESIZE"),
        (FOUR_TASKS | {"SLURM_DISTRIBUTION": "magic"}, "'magic'"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, r"not set: OMPI_COMM_WORLD_SIZE, OMPI_\w+_LOCAL_RANK, OMPI_\w+_LOCAL_SIZE"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2"),
        (over_two_hosts(WITHOUT_URI, 2), "TFDIST_CHIEF"),
        ({"TF_CONFIG": "{'cluster': 1}"}, "JSON object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "chief or worker"),
        (tf_config("worker", 2, worker=["a:1", "b:1"]), "task.index"),
        (tf_config("worker", 0, worker=["a", "b:1"]), "host:port"),
        (tf_config("worker", 0, worker=["a:1", "a:1"]), "twice"),
        (tf_config("chief", 0, chief=["a:1", "b:1"]), "one chief"),
        (tf_config("evaluator", 0, worker=["a:1"], evaluator=["b:1"]), "evaluator"),
        (tf_config("worker", 0, worker=["a:1"], ps=["b:1"]), "parameter servers"),
        (FOUR_TASKS | LEFT_OVER_TF_CONFIG, r"1 worker.s., but \w+=4: .*Unset TF_CONFIG"),
    ],
)
def test_variables_that_cannot_be_right_are_named(env, named):
    with pytest.raises(ValueError, match=named):
        resolve(env)
