"""Pods of a Kubernetes Indexed Job: JOB_COMPLETION_INDEX, and the host name JOB-INDEX; one worker for each pod.

https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication: the pods resolve one another as
JOB-INDEX.SERVICE with a headless service. No variable has their number: the manifest sets TFDIST_NUM_WORKERS and
TFDIST_SERVICE (launch/kubernetes/job.yaml).
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("JOB_COMPLETION_INDEX", "HOSTNAME", "TFDIST_NUM_WORKERS", "TFDIST_SERVICE")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this pod; without TFDIST_NUM_WORKERS it is the only worker, with a note.

    Raises:
        ValueError: variables are missing or inconsistent.
    """
    if not env.get("TFDIST_NUM_WORKERS"):
        note = (
            f"This is pod {env['JOB_COMPLETION_INDEX']} of a Kubernetes Indexed Job, and it trains alone. To train on "
            "all of its pods, set TFDIST_NUM_WORKERS and TFDIST_SERVICE as launch/kubernetes/job.yaml does."
        )
        return WorkerSpec(launcher="local", note=note)
    variables.need(env, _VARIABLES, "A Kubernetes Indexed Job started this pod")
    index = variables.integer(env, "JOB_COMPLETION_INDEX")
    job, dash, own = env["HOSTNAME"].partition(".")[0].rpartition("-")
    if not dash or own != str(index):
        raise ValueError(
            f"HOSTNAME must be JOB-{index} in pod {index} of an Indexed Job: leave hostname of the template unset. "
            f"{variables.say_received(env, _VARIABLES)}"
        )
    count = variables.integer(env, "TFDIST_NUM_WORKERS")
    return worker_specs.of_hosts(
        "kubernetes",
        env,
        rank=index,
        hosts=[f"{job}-{number}.{env['TFDIST_SERVICE']}" for number in range(count)],
        job=job,
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
