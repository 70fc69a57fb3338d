"""Detects the launcher from environment variables, and returns the `WorkerSpec`. Imports no TensorFlow.

The first of these that is found applies:

1. TF_CONFIG with a cluster. It is only for TensorFlow, so it was set on purpose; a launcher's variables (of an
   interactive Slurm shell, for example) may be there too. If that launcher started several tasks, but not as many as
   TF_CONFIG has workers, one of the two is a leftover: an error.
2. mpirun or mpiexec: OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, MPI_LOCALRANKID, PALS_RANKID, which only these programs set;
   on HPE Cray EX, srun sets PALS_RANKID too, and PALS_APID to its own step.
   Before Slurm, because mpirun inside an allocation starts its own daemons as a Slurm step: a rank inherits the SLURM_*
   variables of a daemon, which do not contain its rank or the number of ranks.
3. A Slurm step, started by srun. An sbatch script and a salloc shell are not steps.
4. PMI_RANK and PMI_SIZE, set by other MPI launchers. After Slurm, because `srun --mpi=pmi2` sets them too.
5. pbsdsh, which starts a task on each host of a PBS job: PBS_TASKNUM above 1.
6. Otherwise this process is the only worker.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import mpi, pbs, slurm, tf_config
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this process, in the order of the module's docstring.

    Ports are in [port_base, port_base + port_count). They depend on the ids of job and step: the same on all workers,
    and nearly always different for two jobs on one host.

    Raises:
        ValueError: a variable is missing, not valid, or inconsistent with another one.
    """
    ports = {"port_base": port_base, "port_count": port_count}
    mpirun = mpi.mpirun_variables(env)
    cluster = tf_config.read_cluster(env)
    if cluster:
        return tf_config.resolve(env, cluster, mpirun[1] if mpirun else "SLURM_STEP_NUM_TASKS", **ports)
    if mpirun:
        return mpi.rank(env, mpirun, **ports)
    if slurm.in_step(env):
        return slurm.step(env, **ports)
    pmi = mpi.pmi_variables(env)
    if pmi:
        return mpi.rank(env, pmi, **ports)
    if pbs.in_task(env):
        return pbs.task(env, **ports)
    return WorkerSpec(launcher="local", note=slurm.forgotten_srun(env) or pbs.forgotten_launcher(env))
