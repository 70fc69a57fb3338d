"""jsrun of IBM's Job Step Manager, in LSF: JSM_NAMESPACE_RANK, _SIZE, _LOCAL_RANK and _LOCAL_SIZE in each task.

The names are those that Lightning's LSFEnvironment and the OpenMP runtime of GCC read. The hosts are those of
LSB_DJOB_RANKFILE or LSB_MCPU_HOSTS ("host slots host slots ..."). The launch node is among them, on which there may be
no task, so rank 0 is looked for on all.
"""

from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = tuple(f"JSM_NAMESPACE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))


def hosts(env: Mapping[str, str]) -> list[str]:
    """Returns the hosts of an LSF job in LSF's order, each once; [] if no variable has them."""
    try:
        with open(env.get("LSB_DJOB_RANKFILE", "")) as lines:
            return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    except OSError:
        return list(dict.fromkeys(env.get("LSB_MCPU_HOSTS", "").split()[::2]))


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int) -> WorkerSpec:
    """Returns the worker spec of this task; raises ValueError if variables are missing or inconsistent."""
    variables.need(env, _VARIABLES, "jsrun started this process")
    rank, size, local_rank, local_size = (variables.integer(env, name) for name in _VARIABLES)
    return worker_specs.of_ranks(
        "jsrun",
        env,
        rank=rank,
        num_workers=size,
        local_rank=local_rank,
        local_size=local_size,
        chiefs=hosts(env),
        job="/".join(env.get(name, "") for name in ("LSB_JOBID", "LSB_JOBINDEX", "JSM_JSRUN_ID", "PMIX_NAMESPACE")),
        port_base=port_base,
        port_count=port_count,
        received=(*_VARIABLES, "LSB_MCPU_HOSTS", "LSB_DJOB_RANKFILE"),
    )
