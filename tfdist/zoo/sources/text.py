"""A text file as sequences of characters, for a network that predicts the next one."""

import os

import numpy as np

from tfdist.config import paths
from tfdist.zoo.sources.arrays import Arrays, divide


def text(split: str, *, path: str, length: int = 64, test_fraction: float = 0.1) -> Arrays:
    """The characters of a text file in UTF-8, in pieces of `length`, each with the characters that follow.

    Characters are numbered in the order of their code points; `classes` of the source, which data.json in the workdir
    holds, lists them.

    Args:
        split: "train", "test" or "all", with or without a slice; "test" is the end of the text.
        path: the file; variables are expanded.
        test_fraction: the part of the pieces in "test".

    Returns:
        A source of {"inputs": int32 [n, length], "targets": int32 [n, length], the next character of each}.

    Raises FileNotFoundError if there is no such file, and ValueError if it is no UTF-8, or too short.
    """
    path = str(paths.local(path, "path"))
    name = f"text {path!r}"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: there is no file {os.path.abspath(path)!r}.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not encoded in UTF-8: {error}. Convert it, for example with iconv.") from None
    if length < 1:
        raise ValueError(f"{name}: length must be at least 1. Received: {length!r}")
    pieces = (len(content) - 1) // length
    if pieces < 2:
        raise ValueError(
            f"{name} has {len(content):,} characters, and length={length} needs at least {2 * length + 1}."
        )
    codes = np.frombuffer(content.encode("utf-32-le"), np.uint32)
    known, numbers = np.unique(codes, return_inverse=True)
    numbers = numbers.astype(np.int32)
    features = {
        "inputs": numbers[: pieces * length].reshape(pieces, length),
        "targets": numbers[1 : pieces * length + 1].reshape(pieces, length),
    }
    classes = [chr(code) for code in known]
    options = {"test_fraction": test_fraction, "name": name, "num_classes": len(classes), "classes": classes}
    return divide(split, features, in_order=True, **options)
