"""Ranks, or lists of hosts, as launchers give them -> `WorkerSpec`. Imports no TensorFlow."""

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
    port_base: int,
    port_count: int,
    received: Sequence[str] = (),
) -> WorkerSpec:
    """Returns the worker spec where there is one worker on each host of a list.

    Args:
        launcher: its name.
        env: the environment.
        rank: the position of this worker's host in `hosts`.
        hosts: names or addresses, in the same order on all workers.
        job: the same on all workers, and different for two jobs.
        port_base: ports are in [port_base, port_base + port_count).
        port_count: see port_base.
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


def of_ranks(
    launcher: str,
    env: Mapping[str, str],
    *,
    rank: int,
    num_workers: int,
    local_rank: int,
    local_size: int,
    chiefs: Sequence[str],
    job: str,
    port_base: int,
    port_count: int,
    received: Sequence[str] = (),
) -> WorkerSpec:
    """Returns the worker spec where only the host of rank 0 is known, or all workers are on one host.

    Args:
        launcher: its name.
        env: the environment.
        rank: of this worker.
        num_workers: of the job.
        local_rank: of this worker on its host.
        local_size: workers on its host.
        chiefs: the host of rank 0, or several where it may be; TFDIST_CHIEF replaces them.
        job: the same on all workers, and different for two jobs.
        port_base: ports are in [port_base, port_base + port_count).
        port_count: see port_base.
        received: the variables to name in a message.

    Raises:
        ValueError: the numbers are inconsistent, TFDIST_CHIEF is not valid, or workers on several hosts have no chief.
    """
    if not (rank < num_workers and local_rank < local_size <= num_workers):
        raise ValueError(f"The variables of {launcher} are inconsistent. {variables.say_received(env, received)}")
    first, _ = variables.port_block(port_base, port_count, variables.number([job]), at_least=1)
    own = [port_base + (first - port_base + index) % port_count for index in range(local_size)]
    alone = local_size == num_workers
    found = () if alone else _chiefs(env, chiefs, first)
    if not alone and not found:
        raise ValueError(f"{launcher} does not say on which host rank 0 runs. {variables.say_received(env, received)}")
    if found and rank == 0 and env.get("TFDIST_CHIEF"):
        own[local_rank] = hostlist.split_address(found[0])[1]
    devices = worker_spec.cuda_devices(env)
    return WorkerSpec(
        launcher=launcher,
        rank=rank,
        num_workers=num_workers,
        addresses=tuple(f"localhost:{port}" for port in own) if alone else (),
        port=own[local_rank],
        # After the ports of the ranks on the chief's host, where it is opened.
        heartbeat_port=port_base + (first - port_base + local_size) % port_count if local_size < port_count else 0,
        chiefs=found,
        local_rank=local_rank,
        local_size=local_size,
        job=f"{launcher} {job}",
        # A launcher passes its CUDA_VISIBLE_DEVICES to all ranks of a host; a wrapper may have divided them.
        gpu_sharers=local_size if devices is None or len(devices) >= local_size else 1,
        gpu_names=devices or (),
    )


def _chiefs(env: Mapping[str, str], hosts: Sequence[str], port: int) -> tuple[str, ...]:
    """Returns where rank 0 may be: at TFDIST_CHIEF, "host" or "host:port", or if it is not set, on each of `hosts`."""
    text = env.get("TFDIST_CHIEF")
    if not text:
        return tuple(hostlist.join_address(host, port) for host in dict.fromkeys(hosts))
    bare = ":" not in text or (text.count(":") > 1 and "]:" not in text)  # A name, or an IPv6 address.
    address = hostlist.join_address(text.strip("[]"), port) if bare else text
    try:
        hostlist.split_address(address)
    except ValueError:
        raise ValueError(f'TFDIST_CHIEF must be "host" or "host:port". Received: {text!r}') from None
    return (address,)
