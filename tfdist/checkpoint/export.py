"""Writes the final model in Keras' format."""

import contextlib
from pathlib import Path

import keras

from tfdist.report import files


def export(model: keras.Model, path: Path) -> str:
    """Writes `model` to `path` (.keras) atomically, through a temporary file; returns a line for the log.

    If Keras cannot save the model, for example because a class has no `get_config`, nothing is written.
    """
    temporary = path.with_name(f"{path.stem}.writing.keras")
    try:
        model.save(temporary)
        files.move_complete(temporary, path)
        return f"exported {path}"
    except OSError:
        raise
    except Exception as error:  # From the user's `get_config`, or from Keras: the run is finished anyway.
        why = " ".join(str(error).partition("Example:")[0].split())
        return f"{path.name} not written: Keras cannot save this model. Its weights are in the checkpoint. Keras: {why}"
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
