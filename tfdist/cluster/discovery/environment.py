"""Detects the launcher from environment variables, and returns the `WorkerSpec`. Imports no TensorFlow.

The first of these that applies is used:

1. TF_CONFIG with a cluster. Only TensorFlow uses it, so it was set on purpose; a launcher's variables (for example of
   an interactive Slurm shell) may be set, too. If that launcher started several tasks, but not as many as TF_CONFIG has
   workers, one of the two is a leftover, which is an error.
2. torchrun, which starts workers within another launcher's step or job.
3. mpirun or mpiexec: OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, MPI_LOCALRANKID, PALS_RANKID, which only these programs set;
   on HPE Cray EX, srun sets PALS_RANKID too, and PALS_APID to its own step.
   Before Slurm, because mpirun inside an allocation starts its own daemons as a Slurm step: ranks inherit a daemon's
   SLURM_* variables, which contain neither their rank nor the number of ranks.
4. A Slurm step, started by srun. An sbatch script and a salloc shell are not steps.
5. PMI_RANK and PMI_SIZE, set by other MPI launchers. After Slurm, because `srun --mpi=pmi2` sets them too.
6. pbsdsh, which starts a task on each host of a PBS job: PBS_TASKNUM above 1.
7. RANK, WORLD_SIZE and MASTER_ADDR. Last, because they may be inherited: a Kubernetes container may start mpirun. Users
   set them for launchers with other variables (docs/launchers.md).
8. Otherwise this process is the only worker.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery.launchers import by_ranks, mpi, pbs, slurm, tf_config
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this process; the module's docstring has the order of launchers.

    Ports are in [port_base, port_base + port_count). They depend on the ids of job and step: the same on all workers,
    and nearly always different for two jobs on one host.

    Raises:
        ValueError: a variable is missing, not valid, or inconsistent with another one.
    """
    ports = {"port_base": port_base, "port_count": port_count}
    mpirun = mpi.mpirun_variables(env)
    if cluster := tf_config.read_cluster(env):
        return tf_config.resolve(env, cluster, mpirun[1] if mpirun else "SLURM_STEP_NUM_TASKS", **ports)
    if env.get("TORCHELASTIC_RUN_ID") and env.get("RANK"):
        return by_ranks.resolve_torchrun(env, **ports)
    if mpirun:
        return mpi.resolve(env, mpirun, **ports)
    if slurm.in_step(env):
        return slurm.resolve(env, **ports)
    if pmi := mpi.pmi_variables(env):
        return mpi.resolve(env, pmi, **ports)
    if pbs.in_task(env):
        return pbs.resolve(env, **ports)
    if all(env.get(name) for name in by_ranks.NEEDED):
        return by_ranks.resolve_torchrun(env, **ports)
    return WorkerSpec(launcher="local", note=slurm.forgotten_srun(env) or pbs.forgotten_launcher(env))


def resolve_roughly(env: Mapping[str, str]) -> WorkerSpec:
    """As `resolve`, with arbitrary ports. Invalid variables, which `connect` reports, count as not set."""
    try:
        return resolve(env, port_base=10000, port_count=10000)
    except ValueError:
        return WorkerSpec(launcher="local")
