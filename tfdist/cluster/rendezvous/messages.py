"""The messages of the rendezvous: their fields, and a check of what other workers send. No TensorFlow.

Every message has `job`, `rank` (of the sender), `nonce` (of its process), `to` (the rank of the receiver) and `kind`.
"""

import re
from collections.abc import Mapping
from typing import Any

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.rendezvous import decision

# Kinds that only rank 0 uses, and kinds that only rank 0 sends. "who" changes nothing: it is for the reply.
TO_RANK_0 = ("arrive", "hello", "report")
BY_RANK_0 = ("addresses", "decision")
_NONCE = re.compile("[0-9a-f]{16}")
_LONGEST_TEXT = 65_536
_LONGEST_HOST = 255


def add_receiver(body: bytes, rank: int) -> bytes:
    """Adds the receiver's rank to the encoding of a message."""
    return b'{"to": %d, ' % rank + body.removeprefix(b"{")


def check(message: Mapping[str, Any], size: int) -> None:
    """Checks the types and ranges of a message's fields; a ValueError names the field."""
    job, rank, nonce, kind = (message.get(name) for name in ("job", "rank", "nonce", "kind"))
    _require(_is_text(job), "job")
    _require(_is_rank(rank, size), "rank")
    _require(isinstance(nonce, str) and _NONCE.fullmatch(nonce), "nonce")
    _require(type(message.get("to")) is int, "to")
    _require(isinstance(kind, str) and kind in _CHECKS, "kind")
    _CHECKS[kind](message, size)


def _require(condition: Any, field: str) -> None:
    if not condition:
        raise ValueError(f"a message with an invalid field: {field}")


def _is_text(value: Any, longest: int = _LONGEST_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= longest


def _is_rank(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _is_address(value: Any) -> bool:
    if not _is_text(value, _LONGEST_HOST + 8):
        return False
    try:
        hostlist.split_address(value)
    except ValueError:
        return False
    return True


def _check_arrive(message: Mapping[str, Any], size: int) -> None:
    _require(type(message.get("port")) is int and 0 < message["port"] < 65536, "port")
    _require(_is_text(message.get("dialled"), _LONGEST_HOST) and message["dialled"], "dialled")


def _check_hello(message: Mapping[str, Any], size: int) -> None:
    _require("me" in message, "me")
    me = message["me"]
    if me is None:
        return
    _require(isinstance(me, dict), "me")
    _require(_is_text(me.get("host"), _LONGEST_HOST) and type(me.get("pid")) is int, "me")
    _require(isinstance(me.get("metadata"), dict), "metadata")
    values = me.get("must_match")
    _require(isinstance(values, dict) and all(_is_text(value) for value in values.values()), "must_match")
    names = me.get("exclusive")
    _require(isinstance(names, list) and all(_is_text(name) for name in names), "exclusive")


def _check_report(message: Mapping[str, Any], size: int) -> None:
    unreached = message.get("unreached")
    _require(isinstance(unreached, dict), "unreached")
    for rank, reason in unreached.items():
        _require(re.fullmatch(r"[0-9]{1,9}", rank) and int(rank) < size and _is_text(reason), "unreached")
    for name in ("failed", "stopped", "workdir"):
        _require(_is_text(message.get(name)), name)
    _require(type(message.get("port_in_use")) is bool, "port_in_use")


def _check_addresses(message: Mapping[str, Any], size: int) -> None:
    found = message.get("addresses")
    _require(isinstance(found, list) and len(found) == size and all(map(_is_address, found)), "addresses")


def _check_decision(message: Mapping[str, Any], size: int) -> None:
    found = message.get("decision")
    _require(isinstance(found, dict), "decision")
    if "error" in found:
        _require(_is_text(found["error"]) and found["error"] in decision.ERRORS, "decision")
        _require(_is_text(found.get("message")), "decision")
        missing = found.get("missing", [])
        _require(isinstance(missing, list) and all(_is_rank(rank, size) for rank in missing), "decision")
        return
    members = found.get("members")
    _require(isinstance(members, list) and len(members) == size, "decision")
    for rank, member in enumerate(members):
        _require(isinstance(member, dict) and member.get("rank") == rank and type(member["rank"]) is int, "decision")
        _require(_is_address(member.get("address")) and _is_text(member.get("host"), _LONGEST_HOST), "decision")
        _require(type(member.get("pid")) is int, "decision")


_CHECKS = {
    "arrive": _check_arrive,
    "hello": _check_hello,
    "report": _check_report,
    "addresses": _check_addresses,
    "decision": _check_decision,
    "who": lambda message, size: None,
}
