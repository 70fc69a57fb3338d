"""Detects the launcher from environment variables, and returns the `WorkerSpec`. Imports no TensorFlow.

The first of these that is found applies:

1. TF_CONFIG with a cluster. It is only for TensorFlow, so it was set on purpose; a launcher's variables (of an
   interactive Slurm shell, for example) may be there too. If that launcher started several tasks, but not as many as
   TF_CONFIG has workers, one of the two is a leftover: an error.
2. torchrun, which starts workers within a step or a job of others; also the way out for launchers in `NOT_READ`.
3. mpirun or mpiexec: OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, MPI_LOCALRANKID, PALS_RANKID, which only these programs set;
   on HPE Cray EX, srun sets PALS_RANKID too, and PALS_APID to its own step.
   Before Slurm, because mpirun inside an allocation starts its own daemons as a Slurm step: a rank inherits the SLURM_*
   variables of a daemon, which do not contain its rank or the number of ranks.
4. A Slurm step, started by srun. An sbatch script and a salloc shell are not steps.
5. PMI_RANK and PMI_SIZE, set by other MPI launchers. After Slurm, because `srun --mpi=pmi2` sets them too.
6. pbsdsh, which starts a task on each host of a PBS job: PBS_TASKNUM above 1.
7. `OTHERS`, whose variables may be left from outside: a container of Kubernetes may start mpirun.
8. Otherwise this process is the only worker.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from tfdist.cluster.discovery.launchers import by_hosts, by_ranks, mpi, pbs, slurm, tf_config
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# A function of launchers/, and the variables that show that its launcher has started this process if all are set.
Launcher = tuple[Callable[..., WorkerSpec], Sequence[str]]
# In the order in which they are looked for.
INNER: tuple[Launcher, ...] = ((by_ranks.torchrun, ("TORCHELASTIC_RUN_ID", "RANK")),)
OTHERS: tuple[Launcher, ...] = (
    (by_ranks.torchrun, ("RANK", "WORLD_SIZE", "MASTER_ADDR")),
    (by_hosts.kubernetes, ("JOB_COMPLETION_INDEX",)),
)
# Launchers whose variables are not read: the variable that has the number of their workers, or the list, the launcher,
# and what to set for each worker in its place. The first two may start within a job of others, or set MPI's variables.
_INNER_NOT_READ = (
    (
        "JSM_NAMESPACE_SIZE",
        "jsrun",
        "TORCHELASTIC_RUN_ID=$LSB_JOBID RANK=$JSM_NAMESPACE_RANK WORLD_SIZE=$JSM_NAMESPACE_SIZE "
        "LOCAL_RANK=$JSM_NAMESPACE_LOCAL_RANK LOCAL_WORLD_SIZE=$JSM_NAMESPACE_LOCAL_SIZE MASTER_ADDR=HOST_OF_RANK_0",
    ),
    (
        "FLUX_JOB_SIZE",
        "flux run",
        "TORCHELASTIC_RUN_ID=$FLUX_JOB_ID RANK=$FLUX_TASK_RANK WORLD_SIZE=$FLUX_JOB_SIZE "
        "LOCAL_RANK=$FLUX_TASK_LOCAL_ID LOCAL_WORLD_SIZE=TASKS_PER_NODE MASTER_ADDR=HOST_OF_RANK_0",
    ),
)
_NOT_READ = (
    ("PET_NNODES", "Kubeflow", "RANK=$PET_NODE_RANK WORLD_SIZE=$PET_NNODES MASTER_ADDR=$PET_MASTER_ADDR"),
    (
        "SKYPILOT_NUM_NODES",
        "SkyPilot",
        "RANK=$SKYPILOT_NODE_RANK WORLD_SIZE=$SKYPILOT_NUM_NODES MASTER_ADDR=FIRST_OF_SKYPILOT_NODE_IPS",
    ),
    (
        "DSTACK_NODES_NUM",
        "dstack",
        "RANK=$DSTACK_NODE_RANK WORLD_SIZE=$DSTACK_NODES_NUM MASTER_ADDR=$DSTACK_MASTER_NODE_IP",
    ),
    ("SM_HOSTS", "SageMaker", "TF_CONFIG, by distribution={'multi_worker_mirrored_strategy': {'enabled': True}}"),
)
NOT_READ = (*_INNER_NOT_READ, *_NOT_READ)
_ONE = re.compile(r"1|\[[^,]*\]")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this process, in the order of the module's docstring.

    Ports are in [port_base, port_base + port_count). They depend on the ids of job and step: the same on all workers,
    and nearly always different for two jobs on one host.

    Raises:
        ValueError: a variable is missing, not valid, or inconsistent with another one.
    """
    ports = {"port_base": port_base, "port_count": port_count}
    mpirun = mpi.mpirun_variables(env)
    if cluster := tf_config.read_cluster(env):
        return tf_config.resolve(env, cluster, mpirun[1] if mpirun else "SLURM_STEP_NUM_TASKS", **ports)
    if found := _first(env, INNER):
        return found(env, **ports)
    if not mpirun or "JSM_NAMESPACE_SIZE" in env:
        _refuse(env, _INNER_NOT_READ)
    if mpirun:
        return mpi.rank(env, mpirun, **ports)
    if slurm.in_step(env):
        return slurm.step(env, **ports)
    if pmi := mpi.pmi_variables(env):
        return mpi.rank(env, pmi, **ports)
    if pbs.in_task(env):
        return pbs.task(env, **ports)
    if not env.get("RANK"):
        _refuse(env, _NOT_READ)
    if found := _first(env, OTHERS):
        return found(env, **ports)
    return WorkerSpec(launcher="local", note=slurm.forgotten_srun(env) or pbs.forgotten_launcher(env))


def resolve_roughly(env: Mapping[str, str]) -> WorkerSpec:
    """As `resolve`, with any ports; if variables are not valid, which `connect` reports, as if there were none."""
    try:
        return resolve(env, port_base=10000, port_count=10000)
    except ValueError:
        return WorkerSpec(launcher="local")


def _refuse(env: Mapping[str, str], launchers: Sequence[tuple[str, str, str]]) -> None:
    for count, launcher, instead in launchers:
        if env.get(count) and not _ONE.fullmatch(env[count]):
            raise ValueError(
                f"{launcher} started this process ({count}={env[count]}), and tfdist does not read its variables. Set "
                f"for each worker: {instead} (docs/launchers.md)."
            )


def _first(env: Mapping[str, str], launchers: Sequence[Launcher]) -> Callable[..., WorkerSpec] | None:
    """Returns the function of the first launcher whose variables are all set; None: there is none."""
    return next((function for function, marks in launchers if all(env.get(mark) for mark in marks)), None)
