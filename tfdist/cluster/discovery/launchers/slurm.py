"""Variables of a Slurm step, set by srun -> `WorkerSpec`. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence

from tfdist.cluster.discovery import hostlist, variables, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_STEP_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_LOCALID",
)
# The id of the step in which the shell of salloc runs.
_INTERACTIVE_STEP = "4294967290"
# Port blocks between consecutive steps of a job, so that they do not overlap with steps of the next jobs.
_BLOCKS_PER_STEP = 233
# Port blocks between restarts of a requeued job: the last start may have failed because another job used its port.
_BLOCKS_PER_RESTART = 93


def in_step(env: Mapping[str, str]) -> bool:
    """Returns True if srun started this process; the variables of sbatch and salloc are not sufficient."""
    return any(name in env for name in _STEP_VARIABLES if name.startswith("SLURM_STEP"))


def in_allocation(env: Mapping[str, str]) -> bool:
    """Returns True in an sbatch script, a salloc shell or any other step of one task: srun can start steps there."""
    return bool(env.get("SLURM_JOB_ID")) and (not in_step(env) or env.get("SLURM_STEP_NUM_TASKS") == "1")


def num_replicas(env: Mapping[str, str]) -> int:
    """Returns the number of replicas of an allocation: its tasks, or its GPUs if there are more."""
    nodes = int(env.get("SLURM_JOB_NUM_NODES", "1"))
    return max(int(env.get("SLURM_NTASKS", nodes)), nodes * int(env.get("SLURM_GPUS_ON_NODE", "0")))


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this task of a Slurm step.

    Hosts are in Slurm's order, and tasks are placed by SLURM_DISTRIBUTION (not set: block). The layout is verified
    against Slurm's variables of this task.
    """
    if env.get("SLURM_STEP_NUM_TASKS") == "1":
        return _alone(env, port_base, port_count)
    variables.need(env, _STEP_VARIABLES, "This process belongs to a Slurm step")
    rank, num_workers = variables.integer(env, "SLURM_PROCID"), variables.integer(env, "SLURM_STEP_NUM_TASKS")
    node, local_rank = variables.integer(env, "SLURM_NODEID"), variables.integer(env, "SLURM_LOCALID")
    nodes = hostlist.expand_hostlist(env["SLURM_STEP_NODELIST"])
    counts = hostlist.expand_counts(env["SLURM_STEP_TASKS_PER_NODE"])
    if len(nodes) != len(counts) or sum(counts) != num_workers or not rank < num_workers or not node < len(nodes):
        raise ValueError(
            "Slurm's variables are inconsistent (job steps that span het groups, srun --het-group=0,1, are not "
            f"supported). {variables.say_received(env, _STEP_VARIABLES)}"
        )
    number = variables.integer(env, "SLURM_JOB_ID") + _BLOCKS_PER_STEP * variables.integer(env, "SLURM_STEP_ID")
    number += _BLOCKS_PER_RESTART * int(env.get("SLURM_RESTART_COUNT") or 0)
    most = max(counts)
    at_least = most + 1 if port_count > most else most
    first, length = variables.port_block(port_base, port_count, number, at_least=at_least)
    heartbeat_port = 0
    if length > most:  # The last port.
        length, heartbeat_port = length - 1, first + length - 1

    def port(node: int, local_rank: int) -> int:
        # Different on each node: several nodes may be one machine (Slurm's multiple-slurmd set-up).
        return first + (node * most + local_rank) % length

    layout = hostlist.lay_out(counts, _plane(env, counts))
    _verify_layout(env, nodes, layout)
    return WorkerSpec(
        launcher="slurm",
        rank=rank,
        num_workers=num_workers,
        addresses=tuple(hostlist.join_address(nodes[n], port(n, i)) for n, i in layout),
        port=port(node, local_rank),
        heartbeat_port=heartbeat_port,
        local_rank=local_rank,
        local_size=counts[node],
        job=f"{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}",
        gpu_sharers=_gpu_sharers(env, local_size=counts[node], most=most),
        gpus_on_node=_gpus_on_node(env, counts[node]),
        gpu_names=_gpu_names(env),
    )


def _alone(env: Mapping[str, str], port_base: int, port_count: int) -> WorkerSpec:
    # Other variables are ignored: they may be leftovers of an interactive step in which sbatch was called.
    job = f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
    port, _ = variables.port_block(port_base, port_count, variables.hash_texts([job]), at_least=1)
    return WorkerSpec(
        launcher="slurm",
        addresses=(hostlist.join_address(env.get("SLURMD_NODENAME", "localhost"), port),),
        port=port,
        job=job,
        gpu_names=_gpu_names(env),
        note=forgotten_srun(env),
    )


def forgotten_srun(env: Mapping[str, str]) -> str:
    """Returns a warning if this process is the only worker in an allocation of several tasks or nodes, else "".

    Without a number of tasks, as in `sbatch --nodes=2`, Slurm sets only the number of nodes. One task that srun started
    on several nodes is intended.
    """
    by_srun = in_step(env) and env.get("SLURM_STEP_ID") != _INTERACTIVE_STEP
    tasks, nodes = env.get("SLURM_NTASKS", "1"), "1" if by_srun else env.get("SLURM_JOB_NUM_NODES", "1")
    several = f"{tasks} tasks" if tasks != "1" else f"{nodes} nodes"
    if not env.get("SLURM_JOB_ID") or tasks == nodes == "1":
        return ""
    return (
        f"Slurm job {env['SLURM_JOB_ID']} has {several}, but this process was not started by srun and trains alone. "
        "Prefix the command with srun to use all."
    )


def _plane(env: Mapping[str, str], counts: Sequence[int]) -> int:
    """Returns the number of tasks assigned to a node at a time."""
    # For example "cyclic:block,nopack": the first word is for nodes, the others for cores.
    text = env.get("SLURM_DISTRIBUTION", "block")
    kind = text.partition(":")[0].partition(",")[0].partition("=")[0].lower()
    if kind in ("block", "*", ""):
        return max(counts)
    if kind == "cyclic":
        return 1
    if kind == "plane":
        variables.need(env, ("SLURM_DIST_PLANESIZE",), "Slurm distributes by planes")
        return max(1, variables.integer(env, "SLURM_DIST_PLANESIZE"))
    raise ValueError(
        "SLURM_DISTRIBUTION must start with block, cyclic or plane: for others, such as arbitrary, no variable says "
        f"where the tasks are. Received: {text!r}"
    )


def _verify_layout(env: Mapping[str, str], nodes: Sequence[str], layout: Sequence[tuple[int, int]]) -> None:
    rank, node, local_rank = (
        variables.integer(env, name) for name in ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
    )
    ranks_here = ",".join(str(r) for r, (n, _) in enumerate(layout) if n == node)
    if (
        layout[rank] != (node, local_rank)
        or env.get("SLURMD_NODENAME", nodes[node]) != nodes[node]
        or env.get("SLURM_GTIDS", ranks_here) != ranks_here
    ):
        expected, index = layout[rank]
        names = ("SLURM_NODEID", "SLURMD_NODENAME", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_DISTRIBUTION")
        raise ValueError(
            f"Rank {rank} should be task {index} of node {expected} ({nodes[expected]}), according to the step's host "
            f"list and distribution, but Slurm placed it elsewhere. Specify the distribution: srun -m block, cyclic "
            f"or plane=<size>. {variables.say_received(env, (*_STEP_VARIABLES, *names))}"
        )


def _gpu_sharers(env: Mapping[str, str], *, local_size: int, most: int) -> int:
    """Returns how many tasks share the visible GPUs: the maximum over nodes, so that all tasks get equally many."""
    devices = worker_spec.cuda_devices(env)
    if most == 1:
        return 1
    if local_size == 1:
        # The only task of a node may have been assigned all GPUs of the node.
        binding = env.get("SLURMD_TRES_BIND", "")
        bound = any(kind in binding for kind in ("per_task", "single", "map_gpu", "mask_gpu"))
        return 1 if bound or "SLURM_GPUS_PER_TASK" in env else most
    if devices is None:
        return most
    # CUDA_VISIBLE_DEVICES lists the GPUs that this task sees.
    return most if len(devices) >= (_gpus_on_node(env, local_size) or local_size) else 1


def _gpus_on_node(env: Mapping[str, str], local_size: int) -> int:
    """Returns the number of the step's GPUs on this node; 0 if unknown."""
    on_node = env.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdecimal():
        return int(on_node)
    # Not every version of Slurm sets it. A type may precede the number: "a100:4".
    per_task = env.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    return int(per_task) * local_size if per_task.isdecimal() else 0


def _gpu_names(env: Mapping[str, str]) -> tuple[str, ...]:
    # CUDA_VISIBLE_DEVICES may number GPUs within the task's cgroup; SLURM_STEP_GPUS numbers those of the node.
    devices, names = worker_spec.cuda_devices(env) or (), worker_spec.cuda_devices(env, "SLURM_STEP_GPUS") or ()
    if len(names) == len(devices):
        return names
    return devices if all(name.startswith(("GPU-", "MIG-")) for name in devices) else ()
