"""Launchers that list the hosts, nodes or pods of a job, with one worker on each. Imports no TensorFlow.

Each function raises a ValueError if variables are missing or inconsistent, and says where they are documented.
"""

from collections.abc import Mapping, Sequence

from tfdist.cluster.discovery import hostlist, variables, worker_spec
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
