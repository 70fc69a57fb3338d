"""SkyPilot: SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS, one address a line, on each node of a task with `num_nodes`.

https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html: one worker for each node.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this node; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _VARIABLES, "SkyPilot started this process")
    return worker_specs.of_hosts(
        "skypilot",
        env,
        rank=variables.integer(env, "SKYPILOT_NODE_RANK"),
        hosts=env["SKYPILOT_NODE_IPS"].split(),
        job=env.get("SKYPILOT_TASK_ID", ""),
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
