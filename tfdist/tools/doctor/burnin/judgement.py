"""Which nodes compute otherwise, or more slowly, than most of their kind. Imports no TensorFlow."""

import collections
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Rates of a round: name -> its unit.
RATES = {"arithmetic": "GFLOP/s", "memory": "GB/s", "copy": "GB/s", "link": "GB/s"}
HEADER = ("node", "devices", "rounds", *(f"{name} %" for name in RATES), "result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one device has measured."""

    rank: int
    node: str
    # The device, such as "GPU 0", and its kind, such as "NVIDIA H100": only devices of one kind are compared.
    name: str
    kind: str
    # Of each round: "hash", "finite" and rates; see `device.Probe`.
    rounds: Sequence[Mapping[str, Any]]

    def rate(self, name: str) -> float | None:
        """Returns the median of a rate over the rounds, of the link the largest; None: it was not measured."""
        values = [one[name] for one in self.rounds if one.get(name) is not None]
        # Others use the network, too.
        return None if not values else max(values) if name == "link" else statistics.median(values)


def problems(devices: Sequence[Device], slow: float, slow_link: float) -> dict[str, list[str]]:
    """Returns node -> what is wrong there; nodes without a problem are left out.

    A device is too slow if a rate of its is below `slow` times the median of its kind, or the link below `slow_link`.
    """
    found: dict[str, list[str]] = collections.defaultdict(list)
    for kind in dict.fromkeys(device.kind for device in devices):
        group = [device for device in devices if device.kind == kind]
        for device, text in (*_wrong(group), *_slow(group, slow), *_slow_links(group, slow_link)):
            found[device.node].append(f"{device.name} of rank {device.rank}: {text}")
    return dict(found)


def _wrong(group: Sequence[Device]) -> Iterator[tuple[Device, str]]:
    """Yields the devices with rounds whose result is not that of most rounds of all."""
    counts = collections.Counter(one["hash"] for device in group for one in device.rounds)
    ordered = counts.most_common(2)
    tied = len(ordered) == 2 and ordered[0][1] == ordered[1][1]
    for device in group:
        bad = sum(not one["finite"] for one in device.rounds)
        other = sum(one["hash"] != ordered[0][0] and one["finite"] for one in device.rounds)
        if bad:
            yield device, f"{bad} of {len(device.rounds)} rounds gave NaN or infinity"
        if tied:
            yield device, "results differ, and none has the majority"
        elif other:
            yield device, f"{other} of {len(device.rounds)} rounds gave other bits than most"
        if not device.rounds:
            yield device, "no round was finished"


def _slow(group: Sequence[Device], slow: float) -> Iterator[tuple[Device, str]]:
    """Yields the devices with a rate far below the median of all."""
    for name in ("arithmetic", "memory", "copy"):  # See `_slow_links`.
        rates = [(device, rate) for device in group if (rate := device.rate(name)) is not None]
        median = statistics.median(rate for _, rate in rates) if rates else 0.0
        for device, rate in rates:
            if rate < slow * median:
                yield device, f"{name} {rate:.3g} {RATES[name]}, and {median:.3g} in the median"


def _slow_links(group: Sequence[Device], slow: float) -> Iterator[tuple[Device, str]]:
    """Yields the devices of tasks whose fastest transfer, from or to any other task, is slow."""
    for word, end in (("receives", lambda device, one: device.rank), ("sends", lambda device, one: one["from"])):
        fastest: dict[int, float] = {}  # The others may be slow, and other programs use the network, too.
        for device in group:
            for one in device.rounds:
                if one.get("link") is not None:
                    fastest[end(device, one)] = max(fastest.get(end(device, one), 0.0), one["link"])
        median = statistics.median(fastest.values()) if fastest else 0.0
        for device in group:
            if fastest.get(device.rank, median) < slow * median:
                yield device, f"{word} at most {fastest[device.rank]:.3g} GB/s, and {median:.3g} in the median"


def table(devices: Sequence[Device], found: Mapping[str, Sequence[str]]) -> list[tuple[Any, ...]]:
    """Returns a row for each node, those with problems first: the smallest of its rates, in % of the median."""
    rows = []
    for node in sorted(dict.fromkeys(device.node for device in devices), key=lambda node: (node not in found, node)):
        on_node = [device for device in devices if device.node == node]
        shares = []
        for name in RATES:
            values = [share for device in on_node if (share := _share(device, devices, name)) is not None]
            shares.append(f"{100 * min(values):.0f}" if values else "")
        rounds = min(len(device.rounds) for device in on_node)
        rows.append((node, len(on_node), rounds, *shares, "; ".join(found.get(node, ())) or "ok"))
    return rows


def _share(device: Device, devices: Sequence[Device], name: str) -> float | None:
    rates = [rate for one in devices if one.kind == device.kind and (rate := one.rate(name)) is not None]
    rate = device.rate(name)
    return None if rate is None else rate / statistics.median(rates)
