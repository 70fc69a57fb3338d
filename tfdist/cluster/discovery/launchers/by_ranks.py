"""Launchers that set a rank, the number of workers and at most the host of rank 0. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence

from tfdist.cluster.discovery import hostlist, variables, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Set by torchrun; a user may set them for each worker instead.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def make_spec(
    launcher: str,
    env: Mapping[str, str],
    names: Sequence[str],
    *,
    chiefs: Sequence[str],
    job: str,
    port_base: int,
    port_count: int,
) -> WorkerSpec:
    """Returns the worker spec if only the host of rank 0 is known, or all workers are on one host.

    Args:
        names: the variables that hold rank, number of workers, rank on this host, workers on this host.
        chiefs: the host of rank 0, or several possible hosts; TFDIST_CHIEF overrides them.
        job: the same on all workers, and different for two jobs.

    Raises:
        ValueError: the numbers are inconsistent, TFDIST_CHIEF is not valid, or workers on several hosts have no chief.
    """
    rank, num_workers, local_rank, local_size = (variables.integer(env, name) for name in names)
    if not (rank < num_workers and local_rank < local_size <= num_workers):
        raise ValueError(f"The variables of {launcher} are inconsistent. {variables.say_received(env, names)}")
    first, _ = variables.port_block(port_base, port_count, variables.hash_texts([job]), at_least=1)
    ports = [port_base + (first - port_base + index) % port_count for index in range(local_size)]
    alone = local_size == num_workers
    found = () if alone else _chiefs(env, chiefs, first)
    if not alone and not found:
        raise ValueError(f"{launcher} does not say on which host rank 0 runs. {variables.say_received(env, names)}")
    if found and rank == 0 and env.get("TFDIST_CHIEF"):
        ports[local_rank] = hostlist.split_address(found[0])[1]
    devices = worker_spec.cuda_devices(env)
    return WorkerSpec(
        launcher=launcher,
        rank=rank,
        num_workers=num_workers,
        addresses=tuple(f"localhost:{port}" for port in ports) if alone else (),
        port=ports[local_rank],
        # The first port after those of this host's ranks. It is opened on the chief's host.
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
    """Returns the addresses where rank 0 may be: TFDIST_CHIEF ("host" or "host:port"); if not set, each of `hosts`."""
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


def resolve_torchrun(env: Mapping[str, str], **ports: int) -> WorkerSpec:
    """Returns the worker spec from https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".

    MASTER_PORT is torchrun's own port, which tfdist does not open. Without LOCAL_RANK, as in a pod of Kubernetes, there
    is one worker on each host.
    """
    variables.need(env, NEEDED, "torchrun started this process")
    # Not the number of restarts, which each host counts separately.
    of_job = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return make_spec(
        "torchrun",
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | dict(env),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        chiefs=(env["MASTER_ADDR"],),
        job="/".join(env.get(name, "") for name in of_job),
        **ports,
    )
