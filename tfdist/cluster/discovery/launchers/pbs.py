"""Variables of a task that pbsdsh started in a PBS job, one per host -> `WorkerSpec`. Imports no TensorFlow.

With mpirun in a PBS job, ranks are workers: see mpi.py, which expects rank 0 on the first host of PBS_NODEFILE.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import hostlist, variables, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("PBS_JOBID", "PBS_NODENUM", "PBS_TASKNUM", "PBS_NODEFILE")


def in_task(env: Mapping[str, str]) -> bool:
    """Returns True if pbsdsh started this process; the job script is task number 1."""
    return bool(env.get("PBS_JOBID")) and env.get("PBS_TASKNUM", "").isdecimal() and int(env["PBS_TASKNUM"]) > 1


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this task: one worker on each host, in the order of PBS_NODEFILE."""
    variables.need(env, _VARIABLES, "pbsdsh started this process")
    try:
        with open(env["PBS_NODEFILE"]) as lines:
            hosts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    except OSError as error:
        raise ValueError(
            f"PBS_NODEFILE cannot be read ({error.strerror}): PBS may write it on the first host only. Copy it to a "
            f"shared directory and set PBS_NODEFILE to the copy. {variables.say_received(env, _VARIABLES)}"
        ) from None
    rank = variables.integer(env, "PBS_NODENUM")
    if rank >= len(hosts):
        raise ValueError(
            f"PBS_NODENUM is beyond the {len(hosts)} host(s) of PBS_NODEFILE: start one task per host, with pbsdsh -u. "
            f"{variables.say_received(env, _VARIABLES)}"
        )
    first, length = variables.port_block(port_base, port_count, variables.hash_texts([env["PBS_JOBID"]]), at_least=1)
    return WorkerSpec(
        launcher="pbs",
        rank=rank,
        num_workers=len(hosts),
        addresses=tuple(hostlist.join_address(host, first) for host in hosts),
        port=first,
        heartbeat_port=first + 1 if length > 1 else 0,
        job=f"pbs {env['PBS_JOBID']}",
        gpu_names=worker_spec.cuda_devices(env) or (),
    )


def forgotten_launcher(env: Mapping[str, str]) -> str:
    """Returns a warning if this process is the only worker in a PBS job of several ranks, else ""."""
    try:
        with open(env.get("PBS_NODEFILE", "")) as lines:
            ranks = sum(1 for line in lines if line.strip())
    except OSError:
        return ""
    if not env.get("PBS_JOBID") or ranks < 2:
        return ""
    return (
        f"PBS job {env['PBS_JOBID']} has slots for {ranks} ranks, but this process was not started by mpirun or "
        "pbsdsh and trains alone. Prefix the command with mpirun to use all ranks."
    )
