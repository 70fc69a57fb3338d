"""What the chief returned or raised, on every worker: so all go on, or all fail, in the same way."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.liveness import peer_loss


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a function returned, or what it raised."""

    returned: Any = None
    raised: Exception | None = None

    def value(self) -> Any:
        """Returns or raises it."""
        if self.raised is not None:
            raise self.raised
        return self.returned


def tried(function: Callable[[], Any]) -> Outcome:
    """Calls `function`."""
    try:
        return Outcome(returned=function())
    except Exception as error:
        return Outcome(raised=error)


def announce(cluster: Cluster, outcome: Outcome) -> None:
    """Sends an outcome to the other workers, which call `result`. Called on the chief."""
    error = outcome.raised
    if error is None:
        try:
            content = json.dumps({"returned": outcome.returned})
        except TypeError:
            content = "{}"
    else:
        arguments = [*error.args, *([error.filename] if isinstance(error, OSError) and error.filename else [])]
        kind = type(error)
        content = json.dumps({"raised": [kind.__module__, kind.__qualname__, arguments, str(error)]}, default=str)
    cluster.broadcast_bytes(content.encode())


def result(cluster: Cluster) -> Any:
    """Returns what the function on the chief returned, None if JSON cannot hold it. Called on the other workers.

    Raises:
        Exception: of the same class and with the same text, if the class is known here and takes a text.
        ChiefFailedError: otherwise.
    """
    found = json.loads(cluster.broadcast_bytes(b""))
    if "raised" not in found:
        return found.get("returned")
    module, name, arguments, text = found["raised"]
    kind = getattr(sys.modules.get(module), name, None)
    error: Exception = peer_loss.ChiefFailedError(f"worker 0, the chief, failed: {name}: {text}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # Its constructor takes other arguments.
            error = kind(*arguments)
    raise error
