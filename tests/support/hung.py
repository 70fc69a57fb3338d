"""A file system that hangs: `hung.c`, loaded into the processes of a test, holds their calls while a file exists."""

import functools
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

import pytest
from processes import until


@functools.cache
def _library() -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = pathlib.Path(tempfile.mkdtemp(), "hung.so")
    source = pathlib.Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


class Disk:
    """The files whose paths begin with `below`: `hang` stops the calls of processes with this `environment`."""

    def __init__(self, directory: pathlib.Path, below: pathlib.Path | str):
        self._flag, self._below = directory / "hangs", str(below)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env`, and what loads the library."""
        own = {"TESTS_HANG_BELOW": self._below, "TESTS_HANG_FLAG": str(self._flag)}
        return {**env, "LD_PRELOAD": _library(), **own}

    def hang(self, calls: str) -> None:
        """From now on `calls`, such as "write rename", do not return."""
        self._flag.write_text(calls)

    def until_it_hangs(self) -> None:
        """Waits for the first call that does not return."""
        until(self._flag.with_name("hangs.hangs").exists, 120)
