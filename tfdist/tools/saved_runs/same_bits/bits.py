"""Differences of arrays in words: which elements, and which bits. Imports no TensorFlow."""

from collections.abc import Mapping

import numpy as np

from tfdist.config import text as text_lib

_MOST = 3


def describe(trained: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray]) -> str:
    """Returns which variables of a checkpoint, `saved`, differ from those that were trained again, and how."""
    names = [name for name in trained if name in saved and saved[name].tobytes() != trained[name].tobytes()]
    if not names:
        return "no variable differs"
    differing = text_lib.list_names([f"{name} ({_elements(trained[name], saved[name])})" for name in names], _MOST)
    return f"{len(names)} of {len(trained)} variables differ: {differing}"


def _elements(trained: np.ndarray, saved: np.ndarray) -> str:
    if trained.shape != saved.shape or trained.dtype != saved.dtype:
        return f"{trained.dtype}{list(trained.shape)} and {saved.dtype}{list(saved.shape)}"
    size = trained.dtype.itemsize
    first, second = (np.ascontiguousarray(one).reshape(-1).view(np.uint8).reshape(-1, size) for one in (trained, saved))
    places = (first != second).any(axis=1).nonzero()[0]
    text = f"{len(places)} of {trained.size} elements"
    if len(places) == 1:
        bits = int(np.unpackbits(first[places[0]] ^ second[places[0]]).sum())
        at = [int(one) for one in np.unravel_index(places[0], trained.shape)]
        text = f"element {at}, {bits} bit{'s' * (bits > 1)} of {8 * size}"
    return text
