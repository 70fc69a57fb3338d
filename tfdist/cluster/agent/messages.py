"""The state of the exchange on one worker, and its messages: their fields, and a check of what other agents send.

Messages have `job`, `rank` (of the sender), `nonce` (of its process), `to` (the rank of the receiver) and `kind`.
Imports only the standard library.
"""

import asyncio
import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.cluster.agent import decision
from tfdist.cluster.agent.channel import Links
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_LONGEST_TEXT, _LONGEST_HOST = 65_536, 255


@dataclasses.dataclass(slots=True, kw_only=True)
class Arrival:
    """A worker that has contacted rank 0."""

    me: dict[str, Any]
    nonce: str
    # "host:port".
    address: str


@dataclasses.dataclass(slots=True, kw_only=True)
class Obstacle:
    """Why a worker cannot join the run, in words."""

    failed: str = ""
    # True if it is a port that tfdist chose: a restart has others.
    port_in_use: bool = False
    # Its stop request, such as "SIGTERM".
    stopped: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Chief:
    """Rank 0, seen from another rank; on rank 0, `asked` is not None once it has asked the others."""

    nonce: str = ""
    # What it has asked for, and when it last sent something.
    asked: dict[str, Any] | None = None
    heard: float = 0.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Exchange:
    """The present state of the exchange on one worker."""

    spec: WorkerSpec
    # Its host, pid, metadata, `must_match` values and exclusive resources.
    me: dict[str, Any]
    seconds: float
    deadline: float
    # A local path that all workers must share; None: not checked.
    workdir: pathlib.Path | None
    # Distinguishes processes with the same rank; rank 0's is also part of the token file's name in workdir.
    nonce: str
    addresses: list[str]
    links: Links
    # Set whenever anything below changes.
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    # rank -> reason why there is no connection yet.
    unreached: dict[int, str] = dataclasses.field(default_factory=dict)
    own: Obstacle = dataclasses.field(default_factory=Obstacle)
    decision: dict[str, Any] | None = None
    # Rank 0: the workers, and what they reported; see `decision.decide`.
    arrivals: dict[int, Arrival] = dataclasses.field(default_factory=dict)
    reports: dict[int, dict] = dataclasses.field(default_factory=dict)
    chief: Chief = dataclasses.field(default_factory=Chief)

    @property
    def over(self) -> bool:
        """True if there is a decision, or if it will certainly be an error."""
        bad = any(one["failed"] or one["unreached"] or one["stopped"] for one in self.reports.values())
        return bool(self.decision is not None or self.own.stopped or self.own.failed or bad)

    def settle(self, made: dict[str, Any]) -> None:
        """Stores a decision, unless there is one."""
        self.decision = self.decision or made
        self.changed.set()

    async def until(self, condition: Callable[[], Any], moment: float) -> bool:
        """Waits until something makes `condition` true, or until `moment`; returns whether it is true."""
        while not condition():
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), max(0.0, moment - now()))
            except asyncio.TimeoutError:
                return bool(condition())
        return True


def now() -> float:
    """Seconds on the event loop's clock."""
    return asyncio.get_running_loop().time()


def make(state: Exchange, kind: str, to: int = -1, **content: Any) -> dict[str, Any]:
    """Returns a message of this worker."""
    return {"to": to, "job": state.spec.job, "rank": state.spec.rank, "nonce": state.nonce, "kind": kind} | content


def report(state: Exchange, workdir: str = "") -> dict[str, Any]:
    """Returns this worker's report to rank 0; see `decision.decide`."""
    unreached = {str(rank): reason for rank, reason in state.unreached.items()}
    return make(state, "report", unreached=unreached, workdir=workdir, **dataclasses.asdict(state.own))


def of_decision(state: Exchange, to: int = -1, agent_port: int = 0) -> dict[str, Any]:
    """Returns rank 0's message with the decision; `agent_port`: where its agent listens from then on."""
    return make(state, "decision", to, decision=state.decision, agent_port=agent_port)


def check(message: Mapping[str, Any], size: int) -> None:
    """Checks the fields of a message, a JSON object; `size`: the number of workers. Raises ValueError with the name."""
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ValueError("a message with an invalid field: kind")
    for name, form in (_SENDER | _FIELDS[kind]).items():
        if name not in message or not _fits(message[name], form, size):
            raise ValueError(f"a message with an invalid field: {name}")
    members = message["decision"].get("members", []) if kind == "decision" else []
    if members and [member["rank"] for member in members] != [*range(size)]:
        raise ValueError("a message with an invalid field: decision")


def _fits(value: Any, form: Any, size: int) -> bool:
    """Returns whether a value has a form: a type, a function of `value` and `size`, or one of these in a container.

    A dict of names has at least these fields; {_rank: form} is of ranks in decimal digits, {str: form} of any names. A
    tuple lists alternatives.
    """
    if isinstance(form, type):
        return type(value) is form and (form is not str or len(value) <= _LONGEST_TEXT)
    if isinstance(form, tuple):
        return any(_fits(value, one, size) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(one, form[0], size) for one in value)
    if not isinstance(form, dict):
        return bool(form(value, size))
    if not isinstance(value, dict):
        return False
    (first, inner), *_ = form.items()
    if first is _rank:
        return all(
            re.fullmatch("[0-9]{1,9}", key) and int(key) < size and _fits(value[key], inner, size) for key in value
        )
    if first is str:
        return all(_fits(one, inner, size) for one in value.values())
    return all(name in value and _fits(value[name], one, size) for name, one in form.items())


def _rank(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _port(value: Any, size: int) -> bool:
    del size
    return _rank(value, 65_536)


def _host(value: Any, size: int) -> bool:
    del size
    return isinstance(value, str) and len(value) <= _LONGEST_HOST


def _address(value: Any, size: int) -> bool:
    try:
        return isinstance(value, str) and _host(hostlist.split_address(value)[0], size)
    except ValueError:
        return False


def _nonce(value: Any, size: int) -> Any:
    del size
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value)


_PROCESS = {"host": _host, "pid": int}
_SENDER = {"job": str, "rank": _rank, "to": int, "nonce": _nonce}
_ERROR = {"error": lambda value, size: isinstance(value, str) and value in decision.ERRORS, "message": str}
_FIELDS: dict[str, dict[str, Any]] = {
    # For the reply only, which says who listens.
    "who": {},
    # To rank 0: a worker and its port, and the name or address under which it has found rank 0.
    "arrive": {
        "me": _PROCESS | {"metadata": dict, "must_match": {str: str}, "exclusive": [str]},
        "port": _port,
        "dialled": _host,
    },
    # To rank 0, after the decision: the agent was replaced, or the connection was lost.
    "return": {"pid": int},
    # From rank 0: connect to the agents at these addresses within so many seconds, and report.
    "try": {"addresses": {_rank: _address}, "seconds": float},
    # To rank 0: why the worker cannot join, or what it has tried.
    "report": {"unreached": {_rank: str}, "failed": str, "stopped": str, "workdir": str, "port_in_use": bool},
    "decision": {
        "decision": (_ERROR | {"missing": [_rank]}, {"members": [_PROCESS | {"rank": _rank, "address": _address}]}),
        "agent_port": _port,
    },
}
