"""Detects the launcher from environment variables, and returns the `WorkerSpec`. Imports no TensorFlow.

The first of these that is found applies:

1. TF_CONFIG with a cluster. It is only for TensorFlow, so it was set on purpose; a launcher's variables (of an
   interactive Slurm shell, for example) may be there too. If that launcher started several tasks, but not as many as
   TF_CONFIG has workers, one of the two is a leftover: an error.
2. `INNER`: torchrun and jsrun, which start workers within a step or a job of others.
3. mpirun or mpiexec: OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, MPI_LOCALRANKID, PALS_RANKID, which only these programs set;
   on HPE Cray EX, srun sets PALS_RANKID too, and PALS_APID to its own step.
   Before Slurm, because mpirun inside an allocation starts its own daemons as a Slurm step: a rank inherits the SLURM_*
   variables of a daemon, which do not contain its rank or the number of ranks.
4. Flux, whose brokers may be the tasks of a Slurm step, and which sets PMI_RANK as well.
5. A Slurm step, started by srun. An sbatch script and a salloc shell are not steps.
6. PMI_RANK and PMI_SIZE, set by other MPI launchers. After Slurm, because `srun --mpi=pmi2` sets them too.
7. pbsdsh, which starts a task on each host of a PBS job: PBS_TASKNUM above 1.
8. `OTHERS`, whose variables may be left from outside: a container of Kubernetes may start mpirun.
9. Otherwise this process is the only worker.
"""

from collections.abc import Callable, Mapping, Sequence

from tfdist.cluster.discovery.launchers import by_hosts, by_ranks, mpi, pbs, slurm, tf_config
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# A function of launchers/, and the variables that show that its launcher has started this process if all are set.
Launcher = tuple[Callable[..., WorkerSpec], Sequence[str]]
# In the order in which they are looked for.
INNER: tuple[Launcher, ...] = (
    (by_ranks.torchrun, ("TORCHELASTIC_RUN_ID", "RANK")),
    (by_ranks.jsrun, ("JSM_NAMESPACE_RANK",)),
)
FLUX: tuple[Launcher, ...] = ((by_ranks.flux, ("FLUX_TASK_RANK", "FLUX_JOB_SIZE")),)
OTHERS: tuple[Launcher, ...] = (
    (by_ranks.kubeflow, ("PET_NODE_RANK", "PET_NNODES")),
    (by_ranks.torchrun, ("RANK", "WORLD_SIZE", "MASTER_ADDR")),
    (by_hosts.skypilot, ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")),
    (by_hosts.dstack, ("DSTACK_NODE_RANK", "DSTACK_NODES_IPS")),
    (by_hosts.sagemaker, ("SM_HOSTS", "SM_CURRENT_HOST")),
    (by_hosts.kubernetes, ("JOB_COMPLETION_INDEX",)),
    (by_hosts.host_list, ("TFDIST_ONE_PER_HOST",)),
)
# A job of these may have several hosts although this process was started on one only.
_JOBS = ("OAR_JOB_ID", "LSB_JOBID")


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
    if mpirun:
        return mpi.rank(env, mpirun, **ports)
    if found := _first(env, FLUX):
        return found(env, **ports)
    if slurm.in_step(env):
        return slurm.step(env, **ports)
    if pmi := mpi.pmi_variables(env):
        return mpi.rank(env, pmi, **ports)
    if pbs.in_task(env):
        return pbs.task(env, **ports)
    if found := _first(env, OTHERS):
        return found(env, **ports)
    note = slurm.forgotten_srun(env) or pbs.forgotten_launcher(env)
    if not note and any(env.get(name) for name in _JOBS):
        note = by_hosts.forgotten_launcher(env)
    return WorkerSpec(launcher="local", note=note)


def resolve_roughly(env: Mapping[str, str]) -> WorkerSpec:
    """As `resolve`, with any ports; if variables are not valid, which `connect` reports, as if there were none."""
    try:
        return resolve(env, port_base=10000, port_count=10000)
    except ValueError:
        return WorkerSpec(launcher="local")


def _first(env: Mapping[str, str], launchers: Sequence[Launcher]) -> Callable[..., WorkerSpec] | None:
    """Returns the function of the first launcher whose variables are all set; None: there is none."""
    return next((function for function, marks in launchers if all(env.get(mark) for mark in marks)), None)
