"""Writes the final model in Keras' format."""

import contextlib
from pathlib import Path

import keras

from tfdist.report import files


def export(model: keras.Model, path: Path) -> str:
    """Writes `model` to `path` (.keras) through a temporary file: complete or absent; returns a line for the log.

    Nothing is written of a model that Keras cannot save, for example because a class has no `get_config`.
    """
    temporary = path.with_name(f"{path.stem}.writing.keras")
    try:
        model.save(temporary)
        files.move_complete(temporary, path)
        return f"exported {path}"
    except OSError:
        raise
    except Exception as error:  # Of the user's `get_config`, or Keras' own: the run is finished all the same.
        why = " ".join(str(error).partition("Example:")[0].split())
        return f"no {path.name}, because Keras cannot save this model; its weights are in the checkpoint. Keras: {why}"
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
