"""Variables of launchers besides Slurm, MPI and PBS: those of torchrun, which others are given by a user."""

import pytest

from tfdist.cluster.discovery import environment

# Recorded of `torchrun --standalone --nproc-per-node=2` (torch 2.13), rank 1.
TORCHRUN = {
    **{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "1"},
    **{"ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
    **{"MASTER_ADDR": "localhost", "MASTER_PORT": "33267", "TORCHELASTIC_RESTART_COUNT": "0"},
    **{"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "6e8f69e7", "TORCHELASTIC_USE_AGENT_STORE": "True"},
}
TWO_NODES = TORCHRUN | {"MASTER_ADDR": "gpu-1", "WORLD_SIZE": "4", "RANK": "3", "GROUP_WORLD_SIZE": "2"}
# A pod of launch/kubernetes/job.yaml.
POD = {
    **{"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "tfdist-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    **{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "tfdist-0.tfdist"},
}
# With variables that are not read.
FLUX = {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "PMI_RANK": "5", "PMI_SIZE": "8"}
JSRUN = {"JSM_NAMESPACE_SIZE": "12", "OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "12", "PMIX_RANK": "7"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}


def resolve(env):
    return environment.resolve(env, port_base=10000, port_count=10000)


@pytest.mark.parametrize(
    ("env", "launcher", "place", "chiefs"),
    [
        (TWO_NODES, "torchrun", (3, 4, 1, 2), ["gpu-1"]),
        # Set for each task, as the page says.
        (JSRUN | TWO_NODES, "torchrun", (3, 4, 1, 2), ["gpu-1"]),
        (POD, "torchrun", (1, 2, 0, 1), ["tfdist-0.tfdist"]),
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
    rank_0 = env | {name: "0" for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK") if name in env}
    for given, host, port in (
        *(("n3", "n3", 0), ("n3:5555", "n3", 5555), ("fd00::2", "[fd00::2]", 0)),
        ("[fd00::2]:5555", "[fd00::2]", 5555),
    ):
        chief = resolve(rank_0 | {"TFDIST_CHIEF": given})
        assert chief.port == (port or resolve(rank_0 | {"TFDIST_CHIEF": "n3"}).port)
        assert chief.chiefs == resolve(env | {"TFDIST_CHIEF": given}).chiefs == (f"{host}:{chief.port}",)
    for wrong in ("n3:99999", "n3:x", ":5555"):
        with pytest.raises(ValueError, match=f"TFDIST_CHIEF must .*'{wrong}'"):
            resolve(env | {"TFDIST_CHIEF": wrong})


def test_torchrun_on_one_host_needs_no_name():
    spec = resolve(TORCHRUN)
    assert spec.addresses == (f"localhost:{spec.port - 1}", f"localhost:{spec.port}") and spec.rank == 1
    # A host that has restarted its own worker, and one that has restarted because of another host.
    assert resolve(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}) == spec
    slurm = {"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    assert resolve(TORCHRUN | slurm) == spec  # srun torchrun ...


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (TORCHRUN | {"WORLD_SIZE": ""}, "these variables are not set: WORLD_SIZE"),
        (TORCHRUN | {"RANK": "2"}, "The variables of torchrun are inconsistent.* Received: RANK=2"),
        (FLUX, "these variables are not set: PMI_LOCAL_RANK, PMI_LOCAL_SIZE"),
    ],
)
def test_invalid_variables_are_named(env, message):
    with pytest.raises(ValueError, match=message):
        resolve(env)


def test_the_inner_launcher_is_found_first():
    mpirun = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    mpirun |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    assert resolve(POD | mpirun).launcher == "mpi"
    assert resolve(SKYPILOT | TORCHRUN).launcher == "torchrun"
    assert resolve(SKYPILOT).num_workers == 1
    slurm = {"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURMD_NODENAME": "n1"}
    assert resolve(slurm | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}).launcher == "slurm"
