"""Kubeflow Trainer v2: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR in each pod of a TrainJob, one worker for each pod.

https://www.kubeflow.org/docs/components/trainer and pkg/constants/constants.go of kubeflow/trainer: the variables are
those of torchrun's own options (`--nnodes` is PET_NNODES). If the command of the pod is torchrun, its workers have
RANK, too, and torchrun.py reads them.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this pod; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _VARIABLES, "Kubeflow Trainer started this pod")
    return worker_specs.of_ranks(
        "kubeflow",
        env,
        rank=variables.integer(env, "PET_NODE_RANK"),
        num_workers=variables.integer(env, "PET_NNODES"),
        local_rank=0,
        local_size=1,
        chiefs=(env["PET_MASTER_ADDR"],),
        job="/".join(env.get(name, "") for name in ("PET_MASTER_ADDR", "PET_MASTER_PORT")),
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )
