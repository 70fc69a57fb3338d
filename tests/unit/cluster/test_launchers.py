"""Variables of launchers besides Slurm, MPI and PBS: torchrun and Kubernetes, and those that are refused."""

import pytest
from launching import REPOSITORY

from tfdist.cluster.discovery import environment

# Recorded of `torchrun --standalone --nproc-per-node=2` (torch 2.13), rank 1.
TORCHRUN = {
    **{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "1"},
    **{"ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
    **{"MASTER_ADDR": "localhost", "MASTER_PORT": "33267", "TORCHELASTIC_RESTART_COUNT": "0"},
    **{"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "6e8f69e7", "TORCHELASTIC_USE_AGENT_STORE": "True"},
}
TWO_NODES = TORCHRUN | {"MASTER_ADDR": "gpu-1", "WORLD_SIZE": "4", "RANK": "3", "GROUP_WORLD_SIZE": "2"}
KUBEFLOW = {
    **{"PET_NNODES": "3", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2"},
    **{"PET_MASTER_ADDR": "mine-node-0-0.mine", "PET_MASTER_PORT": "29400", "HOSTNAME": "mine-node-0-2"},
}
SKYPILOT = {
    **{"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5", "SKYPILOT_NUM_NODES": "2"},
    **{"SKYPILOT_NUM_GPUS_PER_NODE": "4", "SKYPILOT_TASK_ID": "sky-2026-11-25-08-00-00-000000_mine_id-1"},
}
DSTACK = {
    **{"DSTACK_NODES_IPS": "10.128.0.47\n10.128.0.48\n10.128.0.49", "DSTACK_MASTER_NODE_IP": "10.128.0.47"},
    **{"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "3", "DSTACK_GPUS_PER_NODE": "8", "DSTACK_GPUS_NUM": "24"},
    "DSTACK_RUN_NAME": "mine",
}
SAGEMAKER = {
    **{"SM_HOSTS": '["algo-2","algo-1"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "4"},
    **{"SM_NETWORK_INTERFACE_NAME": "eth0", "TRAINING_JOB_NAME": "mine-2026-11-25"},
}
FLUX = {
    **{"FLUX_TASK_RANK": "5", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"},
    **{"FLUX_JOB_ID": "ƒ2ZFaCJ5Y", "FLUX_URI": "local:///run/flux/local", "PMI_RANK": "5", "PMI_SIZE": "8"},
}
JSRUN = {
    **{"JSM_NAMESPACE_RANK": "7", "JSM_NAMESPACE_SIZE": "12", "JSM_NAMESPACE_LOCAL_RANK": "1", "LSB_JOBID": "77"},
    **{"JSM_NAMESPACE_LOCAL_SIZE": "6", "LSB_MCPU_HOSTS": "batch5 1 a01n01 42 a01n02 42"},
    **{"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "12", "PMIX_RANK": "7", "PMIX_NAMESPACE": "2"},
}
KUBERNETES = {
    **{"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-digits-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    **{"TFDIST_NUM_WORKERS": "3", "TFDIST_SERVICE": "train-digits"},
}


def resolve(env):
    return environment.resolve(env, port_base=10000, port_count=10000)


def hosts(spec):
    """The hosts of the workers, of which each has the same port."""
    pairs = [address.rpartition(":") for address in spec.addresses]
    assert {port for _, _, port in pairs} == {str(spec.port)}
    return [host for host, _, _ in pairs]


@pytest.mark.parametrize(
    ("env", "launcher", "rank", "expected"),
    [
        (KUBERNETES, "kubernetes", 1, [f"train-digits-{number}.train-digits" for number in range(3)]),
    ],
)
def test_launchers_that_list_hosts_have_one_worker_on_each(env, launcher, rank, expected):
    spec = resolve(env)
    assert (spec.launcher, spec.rank, spec.num_workers, spec.local_size) == (launcher, rank, len(expected), 1)
    assert hosts(spec) == expected and spec.gpu_sharers == 1
    assert spec.heartbeat_port == spec.port + 1 and spec.note == ""


@pytest.mark.parametrize(
    ("env", "launcher", "place", "chiefs"),
    [
        (TWO_NODES, "torchrun", (3, 4, 1, 2), ["gpu-1"]),
        (FLUX | TWO_NODES, "torchrun", (3, 4, 1, 2), ["gpu-1"]),  # Set for each task, as the page says.
        (JSRUN | TWO_NODES, "torchrun", (3, 4, 1, 2), ["gpu-1"]),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "mine-master-0"}, "torchrun", (1, 2, 0, 1), ["mine-master-0"]),
    ],
)
def test_launchers_that_number_workers_are_met_at_the_host_of_rank_0(env, launcher, place, chiefs):
    spec = resolve(env)
    assert (spec.launcher, spec.addresses) == (launcher, ())
    assert (spec.rank, spec.num_workers, spec.local_rank, spec.local_size) == place
    first = spec.port - spec.local_rank
    assert list(spec.chiefs) == [f"{host}:{first}" for host in chiefs]
    assert spec.gpu_sharers == spec.local_size  # All GPUs of the host are visible.
    visible = ",".join(map(str, range(spec.local_size)))
    assert resolve(env | {"CUDA_VISIBLE_DEVICES": visible}).gpu_sharers == spec.local_size
    assert resolve(env | {"CUDA_VISIBLE_DEVICES": "3"}).gpu_sharers == 1


MPIRUN = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(("RANK", "SIZE", "LOCAL_RANK"), "120", strict=True)}
MPIRUN |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


@pytest.mark.parametrize("env", [MPIRUN, TWO_NODES], ids=["mpi", "torchrun"])
def test_the_host_of_rank_0_may_be_given_with_a_port_and_as_an_ipv6_address(env):
    ranks = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")
    rank_0 = env | {name: "0" for name in ranks if name in env}
    for given, host, port in (
        ("n3", "n3", 0),
        ("n3:5555", "n3", 5555),
        ("fd00::2", "[fd00::2]", 0),
        ("[fd00::2]", "[fd00::2]", 0),
        ("[fd00::2]:5555", "[fd00::2]", 5555),
    ):
        chief = resolve(rank_0 | {"TFDIST_CHIEF": given})
        assert chief.port == (port or resolve(rank_0 | {"TFDIST_CHIEF": "n3"}).port)
        assert chief.chiefs == resolve(env | {"TFDIST_CHIEF": given}).chiefs == (f"{host}:{chief.port}",)
    for wrong in ("n3:99999", "n3:x", ":5555"):
        with pytest.raises(ValueError, match='TFDIST_CHIEF must be "host" or "host:port"'):
            resolve(env | {"TFDIST_CHIEF": wrong})


def test_torchrun_on_one_host_needs_no_name():
    spec = resolve(TORCHRUN)
    assert spec.addresses == (f"localhost:{spec.port - 1}", f"localhost:{spec.port}") and spec.rank == 1
    # A host that has restarted its own worker, and one that has restarted because of another host.
    assert resolve(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}) == spec
    slurm = {"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    assert resolve(TORCHRUN | slurm) == spec  # srun torchrun ...


@pytest.mark.parametrize("count", ["FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM"])
def test_the_only_process_of_another_launcher_trains_alone(count):
    assert resolve({count: "1"}).num_workers == resolve({"SM_HOSTS": '["algo-1"]'}).num_workers == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (TORCHRUN | {"WORLD_SIZE": ""}, "these variables are not set: WORLD_SIZE"),
        (TORCHRUN | {"RANK": "2"}, "The variables of torchrun are inconsistent.* Received: RANK=2"),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "a-3"}, "rank 3 must be below the number of hosts, 3"),
        (KUBERNETES | {"HOSTNAME": "pod"}, "HOSTNAME must be JOB-1 in pod 1"),
        (KUBERNETES | {"TFDIST_SERVICE": ""}, "these variables are not set: TFDIST_SERVICE"),
        (FLUX, r"flux run started this process \(FLUX_JOB_SIZE=8\).* RANK=\$FLUX_TASK_RANK"),
        (JSRUN, r"jsrun started this process \(JSM_NAMESPACE_SIZE=12\).* RANK=\$JSM_NAMESPACE_RANK"),
        (DSTACK, r"dstack started this process \(DSTACK_NODES_NUM=3\)"),
        (SKYPILOT, r"SkyPilot started this process \(SKYPILOT_NUM_NODES=2\)"),
        (SAGEMAKER, r"SageMaker started this process .*: TF_CONFIG, by"),
        (KUBEFLOW, r"Kubeflow started this process \(PET_NNODES=3\)"),
    ],
)
def test_invalid_variables_are_named(env, message):
    with pytest.raises(ValueError, match=message):
        resolve(env)


def test_pods_of_an_indexed_job_without_a_number_train_alone():
    spec = resolve({"JOB_COMPLETION_INDEX": "4", "HOSTNAME": "sweep-4"})
    assert (spec.launcher, spec.num_workers) == ("local", 1)
    assert "pod 4 of a Kubernetes Indexed Job, and it trains alone" in spec.note


def test_the_inner_launcher_is_found_first():
    mpirun = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    mpirun |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    assert resolve(FLUX | mpirun).launcher == "mpi"
    assert resolve(KUBERNETES | mpirun).launcher == "mpi"
    assert resolve(KUBEFLOW | TORCHRUN).launcher == "torchrun"
    assert resolve(SKYPILOT | TORCHRUN).launcher == "torchrun"
    slurm = {"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURMD_NODENAME": "n1"}
    assert resolve(slurm | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}).launcher == "slurm"


def test_the_page_of_launchers_names_every_variable_that_is_looked_for():
    page = (REPOSITORY / "docs" / "launchers.md").read_text()
    for function, marks in (*environment.INNER, *environment.OTHERS):
        assert all(mark in page for mark in marks), function
    for _, launcher, _ in environment.NOT_READ:
        assert launcher.partition(" ")[0].lower() in page.lower()
