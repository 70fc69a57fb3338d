"""Names in messages: the one that is meant, and lists that stay short. Imports no TensorFlow."""

import difflib
from collections.abc import Iterable


def closest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the candidate that is most like `word`; "" if no `difflib` ratio reaches `cutoff`."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=cutoff)), "")


def list_names(names: Iterable[object], limit: int, separator: str = ", ", last: str = " and ") -> str:
    """Returns the first `limit` of `names`, and how many more there are: "a, b and 3 more"."""
    names = [str(name) for name in names]
    more = f"{last}{len(names) - limit} more" if len(names) > limit else ""
    return separator.join(names[:limit]) + more
