"""Writes the final model in Keras' format, and a text about its input."""

import contextlib
from pathlib import Path

import keras

from tfdist.report import files


def export(model: keras.Model, path: Path, about: str = "") -> str:
    """Writes `model` to `path` (.keras) through a temporary file: complete or absent; returns a line for the log.

    Nothing is written of a model that Keras cannot save, for example because a class has no `get_config`.

    Args:
        about: text for the file `path` with the suffix .txt, which is there before the model; "": none.
    """
    temporary = path.with_name(f"{path.stem}.writing.keras")
    try:
        model.save(temporary)
        if about:
            files.replace_file(path.with_suffix(".txt"), about.encode(errors="surrogateescape"))
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
