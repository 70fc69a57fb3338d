"""Records which batches of Python code have values that are not finite: they cannot be read twice."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfdist.data import inspection
from tfdist.data.inspection import Rows
from tfdist.keras_fit.adapters import base


@dataclasses.dataclass(frozen=True, slots=True)
class BatchWatch:
    """Looks at each batch when it is made, which may be some steps before it is used."""

    # Step, counted from 1 -> a sentence about its first value that is not finite.
    found: dict[int, str] = dataclasses.field(default_factory=dict)

    def look(self, step: int, batch: tuple[Any, ...], low: int = 0) -> None:
        """Searches a batch (x,), (x, y) or (x, y, sample_weight) of arrays.

        Args:
            step: counted from 1.
            batch: the rows of the step's global batch from row `low` on.
            low: see above.
        """
        columns = base.named_columns(batch)
        if all(_is_probably_finite(values) for values in columns.values()):
            return
        first = inspection.first_nonfinite([Rows(step=step, columns=columns, place=base.place_in_batch(low))])
        if first is not None:
            self.found[step] = first[1]

    def first(self, steps: Iterable[int]) -> tuple[int, str] | None:
        """Returns the first of `steps` whose batch has such a value, and the sentence about it; None: none has."""
        return next(((step, self.found[step]) for step in steps if step in self.found), None)


def _is_probably_finite(values: np.ndarray) -> bool:
    """Returns False if a value is not finite, or only the sum: it takes one pass and no memory."""
    if values.dtype.kind != "f":
        return values.dtype.kind != "V"  # bfloat16 is searched in any case.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))
