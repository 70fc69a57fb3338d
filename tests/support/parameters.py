"""Rows of tables of parameters, most of which the slow tests add."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def slow(*row: Any) -> Any:
    """Returns a row of a table of parameters that the slow tests add."""
    return pytest.param(*row, marks=pytest.mark.slow)


def slow_except(rows: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The rows in their order, those that are not among `quick` marked slow; a tuple is a row of several parameters.

    Raises:
        AssertionError: `quick` names a row that is not there.
    """
    rows = list(rows)
    assert all(row in rows for row in quick), f"not among the rows: {[row for row in quick if row not in rows]}"
    return [row if row in quick else slow(*(row if isinstance(row, tuple) else (row,))) for row in rows]


def on_topologies(table: Mapping[str, Iterable[str]], names: Collection[str] | None = None) -> list[Any]:
    """Rows (topology, name) of a table topology -> names, slow if the topology's name says so; `names`: only these."""
    rows = [(topology, name) for topology, found in table.items() for name in found if names is None or name in names]
    return [slow(*row) if "slow" in row[0] else row for row in rows]


def sizes(topology: str) -> tuple[int, int]:
    """The number of workers and the devices of each, of a topology such as "two workers, slow" or "three devices"."""
    count = ("no", "one", "two", "three", "four").index(topology.split()[0])
    return (count, 1) if "worker" in topology else (1, count)
