"""Rows of tables of parameters, most of which the slow tests add."""

from collections.abc import Collection, Iterable
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
