"""dstack: DSTACK_NODE_RANK and DSTACK_NODES_IPS, one address a line, on each node of a task with `nodes`.

https://dstack.ai/docs/concepts/tasks, "System environment variables": one worker for each node.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("DSTACK_NODE_RANK", "DSTACK_NODES_IPS")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this node; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _VARIABLES, "dstack started this process")
    return worker_specs.of_hosts(
        "dstack",
        env,
        rank=variables.integer(env, "DSTACK_NODE_RANK"),
        hosts=env["DSTACK_NODES_IPS"].split(),
        job=env.get("DSTACK_RUN_ID", env.get("DSTACK_RUN_NAME", "")),
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
