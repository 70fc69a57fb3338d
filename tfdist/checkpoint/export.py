"""Writes the final model in Keras' own format."""

import contextlib
import os
from pathlib import Path

import keras


def export(model: keras.Model, path: Path) -> None:
    """Writes `model` in Keras' own format, whole or not at all.

    Raises:
        OSError: the disk is full, read-only or gone.
    """
    aside = path.with_name(f"{path.stem}.writing.keras")
    try:
        model.save(aside)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def reason(error: Exception) -> str:
    """Why something could not be written, in words."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
