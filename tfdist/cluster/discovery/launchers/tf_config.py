"""TF_CONFIG -> WorkerSpec."""

import json
from collections.abc import Mapping

from tfdist.cluster.discovery import hostlist, variables, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def read_cluster(env: Mapping[str, str]) -> dict | None:
    """Returns the cluster of TF_CONFIG, {"worker": ["host:port", ...], ...}; None if it is not set."""
    text = env.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        lists = [tasks for tasks in cluster.values() if isinstance(tasks, list)]
    except (ValueError, AttributeError) as error:
        raise ValueError(f'TF_CONFIG must be a JSON object with "cluster" ({error}). Received: {text!r}') from None
    if len(lists) != len(cluster) or not all(isinstance(address, str) for tasks in lists for address in tasks):
        raise ValueError(f'TF_CONFIG.cluster must contain lists of "host:port". Received: {text!r}')
    return cluster


def resolve(
    env: Mapping[str, str], cluster: dict[str, list[str]], tasks_variable: str, *, port_base: int, port_count: int
) -> WorkerSpec:
    """Returns the worker spec of this process in TF_CONFIG's `cluster`.

    Args:
        tasks_variable: the launcher's variable with its number of tasks, to detect a leftover TF_CONFIG.
    """
    rank, addresses = _rank_and_addresses(env, cluster)
    tasks = env.get(tasks_variable, "1")
    if tasks.isdecimal() and int(tasks) > 1 and int(tasks) != len(addresses):
        raise _invalid(
            env,
            f"it has {len(addresses)} worker(s), but {tasks_variable}={tasks}: the launcher started another number of "
            "tasks. Unset TF_CONFIG to use the launcher, or start one task for each worker.",
        )
    pairs = [hostlist.split_address(address) for address in addresses]
    here = [r for r, (host, _) in enumerate(pairs) if host == pairs[rank][0]]
    most = max(sum(host == other for other, _ in pairs) for host, _ in pairs)
    devices = worker_spec.cuda_devices(env)
    number = variables.hash_texts(addresses)
    first, length = variables.port_block(port_base, port_count, number, at_least=1)
    free = set(range(first, first + length)) - {port for _, port in pairs}
    return WorkerSpec(
        launcher="tf_config",
        rank=rank,
        num_workers=len(addresses),
        addresses=addresses,
        port=pairs[rank][1],
        heartbeat_port=max(free, default=0),
        local_rank=here.index(rank),
        local_size=len(here),
        job=f"TF_CONFIG {number:08x}",
        # If CUDA_VISIBLE_DEVICES is set, it is set for each worker separately.
        gpu_sharers=most if devices is None else 1,
        gpu_names=devices or (),
    )


def _rank_and_addresses(env: Mapping[str, str], cluster: dict[str, list[str]]) -> tuple[int, tuple[str, ...]]:
    task = json.loads(env["TF_CONFIG"]).get("task")
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if cluster.get("ps") or kind == "ps":
        raise _invalid(env, "synchronous training does not use parameter servers. Remove cluster.ps.")
    if kind == "evaluator":
        raise _invalid(env, "the workers evaluate together between training steps. Start no evaluator.")
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator", "ps"})
    if unknown or kind not in ("chief", "worker"):
        name = unknown[0] if unknown else kind
        raise _invalid(env, f"task.type and the cluster's names must be chief or worker, not {name!r}.")
    chief, workers = cluster.get("chief", []), cluster.get("worker", [])
    if len(chief) > 1:
        raise _invalid(env, f"there can be one chief, and cluster.chief has {len(chief)}.")
    count = len(cluster.get(kind, []))
    if type(index) not in (int, str) or not str(index).isdecimal() or int(index) >= count:
        raise _invalid(env, f"task.index must be a number below {count}, the length of cluster.{kind}.")
    addresses = (*chief, *workers)
    for address in addresses:
        try:
            hostlist.split_address(address)
        except ValueError as error:
            raise _invalid(env, str(error).split(" Received")[0]) from None
    if len(set(addresses)) < len(addresses):
        raise _invalid(env, "each worker needs its own address, and one is listed twice.")
    return int(index) + (len(chief) if kind == "worker" else 0), addresses


def _invalid(env: Mapping[str, str], problem: str) -> ValueError:
    return ValueError(f"TF_CONFIG: {problem} Received: {env['TF_CONFIG']!r}")
