"""Checks that the names of the workers' hosts resolve, before the workers wait for one another. No TensorFlow."""

import concurrent.futures
import socket
from collections.abc import Mapping

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Seconds in which a name server answers that there is no such name.
SECONDS = 5.0
_AT_ONCE = 16
# Answers that there is no such name; others mean that the name server is busy.
_FINAL = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def needed(spec: WorkerSpec) -> list[str]:
    """Returns the hosts whose names a worker looks up: rank 0 all, another that of rank 0 and its own.

    If each of N workers looked up all, a name server would get N^2 questions at once.
    """
    ranks = (0, spec.rank) if spec.rank else range(spec.num_workers)
    addresses = [spec.addresses[rank] for rank in ranks] if spec.addresses else spec.chiefs
    return list(dict.fromkeys(hostlist.split_address(address)[0] for address in addresses))


def check(spec: WorkerSpec, env: Mapping[str, str]) -> None:
    """Checks that this host can resolve the names that are `needed`; a name without an answer is not reported.

    Raises:
        ValueError: names the hosts that do not resolve, and what to do.
    """
    # Names of pods, and of SageMaker's containers, appear as these start.
    if spec.num_workers == 1 or "SM_HOSTS" in env or "KUBERNETES_SERVICE_HOST" in env:
        return
    hosts = needed(spec)
    unknown = _unresolved_names(hosts)
    # Of several hosts where rank 0 may be, one is enough.
    if not unknown or (not spec.addresses and len(unknown) < len(hosts)):
        return
    raise ValueError(
        f"host {socket.gethostname()} cannot resolve names of workers' hosts: {hostlist.compress_hostlist(unknown)}, "
        f"from the variables of {spec.launcher}. The workers connect by these names: correct them, or have the site's "
        f"administrators enter them into DNS or /etc/hosts of all nodes. To look one up: getent hosts {unknown[0]}"
    )


def _unresolved_names(hosts: list[str]) -> list[str]:
    """Returns those of `hosts` that surely have no address."""

    def fails(host: str) -> bool:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            return error.errno in _FINAL
        return False

    pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)
    try:
        found = {pool.submit(fails, host): host for host in hosts}
        done, _ = concurrent.futures.wait(found, SECONDS)
        return [host for future, host in found.items() if future in done and future.result()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
