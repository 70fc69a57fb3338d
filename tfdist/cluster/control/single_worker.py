"""The rendezvous of a single worker; removal of proxy variables on any worker. Imports no TensorFlow."""

import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.control import decision
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def unset_proxies(env: MutableMapping[str, str]) -> list[str]:
    """Removes proxy variables, which gRPC would use between workers; returns the names of those that were set."""
    names = [name for name in env if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")]
    for name in names:
        del env[name]
    return names


def members(
    spec: WorkerSpec, metadata: Mapping[str, Any], stop: interruption.StopRequest | None = None
) -> list[dict[str, Any]]:
    """Returns the result of `rendezvous.rendezvous` for a single worker, without a connection; may raise StopError."""
    if stop is not None and stop.reason is not None:
        decision.members_or_raise(decision.stop({0: stop.reason}, spec.addresses))
    address = (spec.addresses or ("localhost",))[0]
    return [{"rank": 0, "address": address, "host": socket.gethostname(), "pid": os.getpid(), **metadata}]
