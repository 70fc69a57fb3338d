"""torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR in its workers.

https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables". MASTER_PORT is a port of torchrun's own,
which tfdist leaves alone. Without LOCAL_RANK, as in the PyTorchJob of Kubeflow's Training Operator (v1), there is one
worker on each host.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this process; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _NEEDED, "torchrun, or variables of its kind, started this process")
    local = [
        variables.integer({name: env.get(name, default)}, name) for name, default in zip(_LOCAL, "01", strict=True)
    ]
    # Not the number of restarts, which each host counts by itself.
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return worker_specs.of_ranks(
        "torchrun",
        env,
        rank=variables.integer(env, "RANK"),
        num_workers=variables.integer(env, "WORLD_SIZE"),
        local_rank=local[0],
        local_size=local[1],
        chiefs=(env["MASTER_ADDR"],),
        job="/".join(env.get(name, "") for name in names),
        port_base=port_base,
        port_count=port_count,
        received=(*_NEEDED, *_LOCAL),
    )
