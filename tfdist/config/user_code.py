"""Explains an error that was raised in a user's function: file, line and code, in one paragraph. No TensorFlow."""

import contextlib
import functools
import glob
import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.config import schema

# The folder of tfdist.
PACKAGE = os.path.join(Path(__file__).parents[1], "")


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Returns the folders of Python, tfdist and all packages, including those outside of Python's own folders.

    Such folders come from `pip install --target` or from the environment modules of clusters, and are in PYTHONPATH.
    They are recognised by the records that pip leaves there. The folder of the script and the current one are the
    user's in any case.
    """
    found = {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(*site.getsitepackages(), site.getusersitepackages(), PACKAGE),
    }
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    users = {os.getcwd(), os.path.dirname(os.path.abspath(script))}
    for path in {os.path.abspath(path) for path in sys.path} - found - users:
        if glob.glob("*.dist-info", root_dir=path):
            found.add(path)
    return tuple(os.path.join(path, "") for path in found)


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def explain(error: BaseException, function: str = "", batch: Mapping[str, Any] | None = None) -> str:
    """Returns a paragraph about an error, or "" if no user's code is in its stack and `function` is not given.

    Args:
        function: the function that failed, such as "config.objective"; "": not known.
        batch: the batch that it received, to name its keys, shapes and dtypes.
    """
    found = place(error)
    if not found and not function:
        return ""
    where = " failed at ".join(part for part in (function, found) if part) if found else f"{function} failed"
    text = message(error)
    parts = [f"{where}: {type(error).__name__}: {text}" + ("" if text.endswith((".", "?")) else ".")]
    if "URL fetch failure" in text:  # Keras' message for weights and datasets.
        parts.append("Without internet: run the command once where there is internet, such as on a login node.")
    if "learning rate is not settable" in text:  # Keras' message for an optimizer with a schedule.
        parts.append(f"In a config, learning_rate.schedule must be {schema.SETTABLE_SCHEDULE}.")
    if batch is not None:
        columns = [f"{name} {getattr(one.dtype, 'name', one.dtype)} {one.shape}" for name, one in batch.items()]
        parts.append(f"The batch has {', '.join(columns)}.")
    return " ".join(parts)


def place(error: BaseException) -> str:
    """Returns the innermost place in the user's code: "train.py, line 3, `fit(model)`"; "" if there is none."""
    # AutoGraph writes the place in the user's file into the message: the last one is the innermost.
    named = re.findall(r'File "([^"]+)", line (\d+), in ', str(error))
    for file, line in [*((file, int(line)) for file, line in reversed(named)), *_stack(error)]:
        if os.path.isfile(file) and is_users(file) and "__autograph_generated" not in file:
            code = linecache.getline(file, line).strip()
            relative = os.path.relpath(file)
            return f"{file if relative.startswith('..') else relative}, line {line}" + (f", `{code}`" if code else "")
    return ""


def current_line(frames: Sequence[Any] | None = None) -> str:
    """Returns the innermost line of the user's code: "FILE:NUMBER: text"; "a library" if there is none.

    Args:
        frames: with `filename`, `lineno` and `line`, outermost first, such as `tf.Operation.traceback`; None: those
            of this call.
    """
    for frame in reversed(traceback.extract_stack() if frames is None else frames):
        if is_users(frame.filename):
            text = frame.line or linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return "a library"


def current_frame() -> types.FrameType | None:
    """Returns the innermost frame of the user's code."""
    return next((frame for frame, _ in traceback.walk_stack(None) if is_users(frame.f_code.co_filename)), None)


def message(error: BaseException) -> str:
    """Returns an error's message in one line, without colours, Keras' list of arguments, and TensorFlow's stack."""
    text = original_message(error)
    _, found, inner = text.rpartition(f"{type(error).__name__}: ")
    if found and text.lstrip().startswith("in user code:"):
        text = inner
    # Keras lists the arguments of its call, with their values.
    return " ".join(without_colours(text).split()).partition(" Arguments received by ")[0]


def is_user_error(error: BaseException) -> bool:
    """Returns whether an error's message says what to do: tfdist raised it, or it names a file that cannot be used.

    Other errors in tfdist's code, such as that of `int("a")`, have Python's own message.
    """
    file, number = _stack(error)[0]
    raised = linecache.getline(file, number).strip().startswith("raise ")
    raised |= isinstance(error, OSError) and error.filename is not None
    return isinstance(error, ValueError | OSError | ArithmeticError) and file.startswith(PACKAGE) and raised


def original_message(error: BaseException) -> str:
    """Returns the message with which `error` was raised: TensorFlow replaces that of an error raised during tracing."""
    traced = getattr(error, "ag_error_metadata", None)
    return str(error) if traced is None else traced.cause_message.removeprefix(f"{type(error).__name__}: ")


def defines(kind: Any) -> bool:
    """Returns whether a class or function is defined in the user's code, not in a library."""
    module = getattr(kind, "__module__", None)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (file is not None and is_users(file))


def is_users(file: str) -> bool:
    """Returns whether a file is the user's, and not one of a library."""
    return not os.path.abspath(file).startswith(_libraries())


def hashes() -> dict[str, str]:
    """Returns the hash of each Python file of the user's code that is imported, and one of all files of tfdist.

    The name of a file follows its module ("lab/data.py"), wherever it is stored; the script and others have their file
    name.
    """
    found = {"tfdist": _hash(*sorted(map(str, Path(PACKAGE).rglob("*.py"))))}
    modules = [
        (name, getattr(module, "__file__", None))
        for name, module in [*sys.modules.items()]
        if not name.startswith("__autograph_generated_file")  # AutoGraph's copy of a function, with a random name.
    ]
    for name, file in [*modules, ("", sys.argv[0])]:
        if file and file.endswith(".py") and is_users(file) and os.path.isfile(file):
            path = Path(file)
            parts = (*name.split("."), path.name) if path.stem == "__init__" else (*name.split(".")[:-1], path.name)
            found["/".join(parts) if path.parts[-len(parts) :] == parts else path.name] = _hash(os.path.abspath(file))
    return found


@functools.cache  # The hash of the imported code stays if the file is edited later.
def _hash(*files: str) -> str:
    import hashlib  # Imported here, because a wrong command line needs no hash.

    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def is_of_python(file: str) -> bool:
    """Returns whether a file is one of Python's own modules."""
    folders = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    return file.startswith(folders) and f"{os.sep}site-packages{os.sep}" not in file


@contextlib.contextmanager
def refuse_exit() -> Iterator[None]:
    """Raises ValueError for `sys.exit` in the block."""
    try:
        yield
    except SystemExit as end:
        line = place(end) or "a library"
        raise ValueError(
            f"sys.exit({'' if end.code is None else repr(end.code)}) was called at {line}: it ends this worker without "
            "a save. To end the run, set model.stop_training = True in a callback."
        ) from end


def without_colours(text: str) -> str:
    """Removes the terminal's colour codes, which Keras writes into its messages."""
    return _COLOURS.sub("", text)


def _stack(error: BaseException) -> list[tuple[str, int]]:
    """Returns file and line of the frames of an error, innermost first."""
    traced = getattr(error, "ag_error_metadata", None)
    if traced is not None and traced.translated_stack:
        return [(frame.filename, frame.lineno) for frame in traced.translated_stack]
    return [(frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__))]
