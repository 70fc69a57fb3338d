"""Flux, `flux run`: FLUX_TASK_RANK, FLUX_TASK_LOCAL_ID, FLUX_JOB_SIZE, FLUX_JOB_NNODES, FLUX_JOB_ID in each task.

flux-environment(7) of flux-framework/flux-core. Every node has the same number of tasks. No variable has the hosts: on
several nodes TFDIST_CHIEF is the one of rank 0: `export TFDIST_CHIEF=$(flux hostlist --nth=0 local)` before flux run.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "FLUX_JOB_ID")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this task.

    Raises:
        ValueError: variables are missing or inconsistent, or the host of rank 0 is unknown.
    """
    variables.need(env, _VARIABLES, "flux run started this process")
    rank, local_rank, size, nodes = (variables.integer(env, name) for name in _VARIABLES[:4])
    if nodes == 0 or size % nodes:
        raise ValueError(
            f"Flux started {size} tasks on {nodes} nodes: start the same number on each, such as "
            f"--tasks-per-node=1. {variables.say_received(env, _VARIABLES)}"
        )
    if nodes > 1 and not env.get("TFDIST_CHIEF"):
        raise ValueError(
            "flux run started workers on several nodes, and the host of rank 0 is unknown. Set it before flux run: "
            "export TFDIST_CHIEF=$(flux hostlist --nth=0 local)"
        )
    return worker_specs.of_ranks(
        "flux",
        env,
        rank=rank,
        num_workers=size,
        local_rank=local_rank,
        local_size=size // nodes,
        chiefs=(),
        job=env["FLUX_JOB_ID"],
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
