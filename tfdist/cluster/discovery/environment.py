"""Who takes part, read from the environment alone: from variables to a `Placement`. Imports no TensorFlow.

The first of these that the environment holds decides:

1. TF_CONFIG, when it names a cluster. It is written for TensorFlow and nothing else, so whoever set it meant it;
   the variables of a launcher around it (an interactive Slurm shell, say) merely happen to be there. Where that
   launcher started several tasks, and not as many as TF_CONFIG has workers, one of the two is a leftover: refused.
2. mpirun or mpiexec: OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, MPI_LOCALRANKID, PALS_RANKID, which these programs alone set.
   Before Slurm, because mpirun inside an allocation starts its own daemons as a Slurm step: a rank inherits the SLURM_*
   variables of a daemon, which describe neither its rank nor the number of ranks.
3. A Slurm step: what srun started. The environments of an sbatch script and of a salloc shell are no step.
4. PMI_RANK and PMI_SIZE, as other MPI launchers set them. After Slurm, because `srun --mpi=pmi2` sets them too.
5. pbsdsh, which starts a task on each host of a PBS job: PBS_TASKNUM above 1. Its tasks carry nothing of the others.
6. This machine alone.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import mpi, pbs, slurm, tf_config
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Finds this process' place, in the order that the module's docstring gives.

    Ports lie in [port_base, port_base + port_count). The job's and the step's id choose them, so that all workers
    come to the same result, and two jobs on a host to different ones.

    Raises:
        ValueError: a variable is missing, cannot be read, or contradicts another one.
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
