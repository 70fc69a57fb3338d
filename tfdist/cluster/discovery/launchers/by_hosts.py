"""Launchers that list the hosts, nodes or pods of a job, with one worker on each. Imports no TensorFlow.

Each function raises a ValueError if variables are missing or inconsistent, and says where they are documented.
"""

import json
import socket
from collections.abc import Mapping, Sequence

from tfdist.cluster.discovery import hostlist, variables, worker_spec
from tfdist.cluster.discovery.launchers import by_ranks
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def of_hosts(
    launcher: str,
    env: Mapping[str, str],
    *,
    rank: int,
    hosts: Sequence[str],
    job: str,
    received: Sequence[str],
    port_base: int,
    port_count: int,
) -> WorkerSpec:
    """Returns the worker spec where there is one worker on each host of a list.

    Args:
        rank: the position of this worker's host in `hosts`.
        hosts: names or addresses, in the same order on all workers.
        job: the same on all workers, and different for two jobs.
        received: the variables to name in a message.

    Raises:
        ValueError: there is no such host, or one is listed twice.
    """
    if not rank < len(hosts) or len(set(hosts)) < len(hosts):
        raise ValueError(
            f"{launcher}: rank {rank} must be below the number of hosts, {len(hosts)}, which must differ: "
            f"{', '.join(hosts)}. {variables.say_received(env, received)}"
        )
    first, length = variables.port_block(port_base, port_count, variables.number([job]), at_least=1)
    return WorkerSpec(
        launcher=launcher,
        rank=rank,
        num_workers=len(hosts),
        addresses=tuple(hostlist.join_address(host, first) for host in hosts),
        port=first,
        heartbeat_port=first + 1 if length > 1 else 0,
        job=f"{launcher} {job}",
        gpu_names=worker_spec.cuda_devices(env) or (),
    )


def dstack(env: Mapping[str, str], **ports: int) -> WorkerSpec:
    """A node of a task with `nodes`: https://dstack.ai/docs/concepts/tasks, "System environment variables".

    DSTACK_NODES_IPS has one address a line.
    """
    names = ("DSTACK_NODE_RANK", "DSTACK_NODES_IPS")
    rank, hosts = variables.integer(env, names[0]), env[names[1]].split()
    job = env.get("DSTACK_RUN_ID", env.get("DSTACK_RUN_NAME", ""))
    return of_hosts("dstack", env, rank=rank, hosts=hosts, job=job, received=names, **ports)


def skypilot(env: Mapping[str, str], **ports: int) -> WorkerSpec:
    """A node of a task with `num_nodes`: https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html.

    SKYPILOT_NODE_IPS has one address a line.
    """
    names = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    rank, hosts = variables.integer(env, names[0]), env[names[1]].split()
    job = env.get("SKYPILOT_TASK_ID", "")
    return of_hosts("skypilot", env, rank=rank, hosts=hosts, job=job, received=names, **ports)


def sagemaker(env: Mapping[str, str], **ports: int) -> WorkerSpec:
    """A container of an Amazon SageMaker training job: ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit.

    SM_HOSTS is a JSON list. With SageMaker's own `multi_worker_mirrored_strategy` the container has TF_CONFIG, which is
    read first.
    """
    names = ("SM_HOSTS", "SM_CURRENT_HOST")
    try:
        hosts = sorted(json.loads(env["SM_HOSTS"]))
        rank = hosts.index(env["SM_CURRENT_HOST"])
    except (ValueError, TypeError):
        raise ValueError(
            f"SM_HOSTS must be a JSON list that has SM_CURRENT_HOST. {variables.say_received(env, names)}"
        ) from None
    job = env.get("TRAINING_JOB_NAME", env.get("SM_MODULE_DIR", ""))
    return of_hosts("sagemaker", env, rank=rank, hosts=hosts, job=job, received=names, **ports)


def kubernetes(env: Mapping[str, str], **ports: int) -> WorkerSpec:
    """A pod of an Indexed Job; without TFDIST_NUM_WORKERS it is the only worker, with a note.

    https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication: the pods, whose host names are JOB-INDEX,
    resolve one another as JOB-INDEX.SERVICE with a headless service. No variable has their number: the manifest sets
    TFDIST_NUM_WORKERS and TFDIST_SERVICE (launch/kubernetes/job.yaml).
    """
    names = ("JOB_COMPLETION_INDEX", "HOSTNAME", "TFDIST_NUM_WORKERS", "TFDIST_SERVICE")
    if not env.get("TFDIST_NUM_WORKERS"):
        note = (
            f"This is pod {env['JOB_COMPLETION_INDEX']} of a Kubernetes Indexed Job, and it trains alone. To train on "
            "all of its pods, set TFDIST_NUM_WORKERS and TFDIST_SERVICE as launch/kubernetes/job.yaml does."
        )
        return WorkerSpec(launcher="local", note=note)
    variables.need(env, names, "A Kubernetes Indexed Job started this pod")
    index = variables.integer(env, "JOB_COMPLETION_INDEX")
    job, dash, number_of_pod = env["HOSTNAME"].partition(".")[0].rpartition("-")
    if not dash or number_of_pod != str(index):
        raise ValueError(
            f"HOSTNAME must be JOB-{index} in pod {index} of an Indexed Job: leave hostname of the template unset. "
            f"{variables.say_received(env, names)}"
        )
    count = variables.integer(env, "TFDIST_NUM_WORKERS")
    hosts = [f"{job}-{number}.{env['TFDIST_SERVICE']}" for number in range(count)]
    return of_hosts("kubernetes", env, rank=index, hosts=hosts, job=job, received=names, **ports)


def _hosts_of_job(env: Mapping[str, str]) -> list[str]:
    """Returns the hosts of an OAR or LSF job, each once; [] if no variable has them.

    OAR_NODEFILE has a line for each core: https://oar.imag.fr/docs/latest/user/commands/oarsub.html.
    """
    return by_ranks.read_lines(env.get("OAR_NODEFILE", "")) or by_ranks.hosts_of_lsf(env)


def host_list(env: Mapping[str, str], *, host: str = "", **ports: int) -> WorkerSpec:
    """One process on each host of an OAR or LSF job, started by the user: oarsh, taktuk, blaunch, pdsh or ssh.

    With TFDIST_ONE_PER_HOST=1 the rank is the position of this host in the job's list. These programs set no rank, and
    not all pass variables on: the command on each host must set them.

    Args:
        host: the name of this host; "": the system's.
    """
    names = ("OAR_NODEFILE", "LSB_MCPU_HOSTS", "LSB_DJOB_RANKFILE")
    found, host = _hosts_of_job(env), host or socket.gethostname()
    short = [name.partition(".")[0] for name in found]
    if host not in found and host.partition(".")[0] not in short:
        raise ValueError(
            f"TFDIST_ONE_PER_HOST=1, but this host, {host}, is not in the job's list of hosts: "
            f"{', '.join(found) or 'none'}. "
            "Pass the variables to each process, and start one on each host. "
            f"{variables.say_received(env, names)}"
        )
    rank = found.index(host) if host in found else short.index(host.partition(".")[0])
    job = env.get("OAR_JOB_ID", env.get("LSB_JOBID", ""))
    return of_hosts("host list", env, rank=rank, hosts=found, job=job, received=names, **ports)


def forgotten_launcher(env: Mapping[str, str]) -> str:
    """Returns a warning if this process is alone in an OAR or LSF job of several hosts, else ""."""
    found = _hosts_of_job(env) if env.get("OAR_JOB_ID") or env.get("LSB_JOBID") else []
    if len(found) < 2:
        return ""
    kind = "OAR" if env.get("OAR_JOB_ID") else "LSF"
    return (
        f"This {kind} job has {len(found)} hosts, but this process was started on one of them and trains alone. Start "
        "it on all: with mpirun, or as docs/launchers.md says."
    )
