"""Amazon SageMaker training jobs: SM_HOSTS, a JSON list, and SM_CURRENT_HOST in each container.

ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit: one worker for each container. With SageMaker's own
`multi_worker_mirrored_strategy` the container has TF_CONFIG, which is read first.
"""

import json
from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("SM_HOSTS", "SM_CURRENT_HOST")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this container; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _VARIABLES, "SageMaker started this process")
    try:
        hosts = sorted(json.loads(env["SM_HOSTS"]))
        rank = hosts.index(env["SM_CURRENT_HOST"])
    except (ValueError, TypeError):
        raise ValueError(
            f"SM_HOSTS must be a JSON list that has SM_CURRENT_HOST. {variables.say_received(env, _VARIABLES)}"
        ) from None
    return worker_specs.of_hosts(
        "sagemaker",
        env,
        rank=rank,
        hosts=hosts,
        job=env.get("TRAINING_JOB_NAME", env.get("SM_MODULE_DIR", "")),
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
