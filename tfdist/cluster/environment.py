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

import json
from collections.abc import Mapping

from tfdist.cluster import hosts, mpi, pbs, placement, slurm
from tfdist.cluster.placement import Placement


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> Placement:
    """Finds this process' place, in the order that the module's docstring gives.

    Ports lie in [port_base, port_base + port_count). The job's and the step's id choose them, so that all workers
    come to the same result, and two jobs on a host to different ones.

    Raises:
        ValueError: a variable is missing, cannot be read, or contradicts another one.
    """
    ports = {"port_base": port_base, "port_count": port_count}
    mpirun = mpi.mpirun_variables(env)
    cluster = _tf_config_cluster(env)
    if cluster:
        return _tf_config(env, cluster, mpirun[1] if mpirun else "SLURM_STEP_NUM_TASKS", **ports)
    if mpirun:
        return mpi.rank(env, mpirun, **ports)
    if slurm.in_step(env):
        return slurm.step(env, **ports)
    pmi = mpi.pmi_variables(env)
    if pmi:
        return mpi.rank(env, pmi, **ports)
    if pbs.in_task(env):
        return pbs.task(env, **ports)
    return Placement(launcher="local", note=slurm.forgotten_srun(env) or pbs.forgotten_launcher(env))


def _tf_config_cluster(env: Mapping[str, str]) -> dict | None:
    text = env.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        lists = [tasks for tasks in cluster.values() if isinstance(tasks, list)]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"TF_CONFIG is no JSON object with a cluster ({error}). Received: {text!r}") from None
    if len(lists) != len(cluster) or not all(isinstance(address, str) for tasks in lists for address in tasks):
        raise ValueError(f'TF_CONFIG.cluster must hold lists of "host:port". Received: {text!r}')
    return cluster


def _tf_config(
    env: Mapping[str, str], cluster: dict[str, list[str]], tasks_variable: str, *, port_base: int, port_count: int
) -> Placement:
    def refuse(problem: str) -> ValueError:
        return ValueError(f"TF_CONFIG: {problem} Received: {env['TF_CONFIG']!r}")

    task = json.loads(env["TF_CONFIG"]).get("task")
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if cluster.get("ps") or kind == "ps":
        raise refuse("parameter servers have no part in synchronous training. Leave cluster.ps out.")
    if kind == "evaluator":
        raise refuse("the workers evaluate together between training steps. Start no evaluator.")
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator", "ps"})
    if unknown or kind not in ("chief", "worker"):
        raise refuse(
            f"task.type and the cluster's names must be chief or worker, not {unknown[0] if unknown else kind!r}."
        )
    chief, workers = cluster.get("chief", []), cluster.get("worker", [])
    if len(chief) > 1:
        raise refuse(f"there can be one chief, and cluster.chief has {len(chief)}.")
    if type(index) not in (int, str) or not str(index).isdecimal() or int(index) >= len(cluster.get(kind, [])):
        raise refuse(f"task.index must be a number below {len(cluster.get(kind, []))}, the length of cluster.{kind}.")
    addresses = (*chief, *workers)
    try:
        pairs = [hosts.split_address(address) for address in addresses]
    except ValueError as error:
        raise refuse(str(error).split(" Received")[0]) from None
    if len(set(addresses)) < len(addresses):
        raise refuse("each worker needs an address of its own, and one is listed twice.")
    tasks = env.get(tasks_variable, "1")
    if tasks.isdecimal() and int(tasks) > 1 and int(tasks) != len(addresses):
        raise refuse(
            f"it has {len(addresses)} worker(s), and {tasks_variable}={tasks} says that the launcher started another "
            "number of tasks. Unset TF_CONFIG to follow the launcher, or start one task for each worker."
        )
    rank = int(index) + (len(chief) if kind == "worker" else 0)
    here = [r for r, (host, _) in enumerate(pairs) if host == pairs[rank][0]]
    most = max(sum(host == other for other, _ in pairs) for host, _ in pairs)
    devices = placement.cuda_devices(env)
    number = placement.number(addresses)
    first, length = placement.port_block(port_base, port_count, number, at_least=1)
    free = set(range(first, first + length)) - {port for _, port in pairs}
    return Placement(
        launcher="tf_config",
        rank=rank,
        num_workers=len(addresses),
        addresses=addresses,
        port=pairs[rank][1],
        heartbeat_port=max(free, default=0),
        local_rank=here.index(rank),
        local_size=len(here),
        job=f"TF_CONFIG {number:08x}",
        # Who starts workers by hand and sets CUDA_VISIBLE_DEVICES sets it for each.
        gpu_sharers=most if devices is None else 1,
        gpu_names=devices or (),
    )
