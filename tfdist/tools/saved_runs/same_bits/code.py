"""The user's code as a run had it, from the copies in workdirs. Imports no TensorFlow."""

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.report import run_info
from tfdist.tools.saved_runs.same_bits.chain import Chain

_PREFIX = "code."
_OWN = f"{_PREFIX}tfdist"
_LONGEST = 100


def lay_out(
    facts: Mapping[str, Any], workdirs: Sequence[Path], folders: Sequence[str], target: Path
) -> tuple[str, ...]:
    """Copies the code that `facts` names from `workdirs` to `target`, a new folder, if a file is now another one.

    Returns where the copies are imported from, in the order of `folders`, where modules are imported from, and to whose
    first the names of files are relative; () if nothing has changed, or a copy is missing.
    """
    names = {name.removeprefix(_PREFIX): value for name, value in facts.items() if name.startswith(_PREFIX)}
    names.pop("tfdist", None)
    now = {name: run_info.hash_of_files([os.path.join(folders[0], name)]) for name in names if folders}
    if not folders or now == names:
        return ()
    for name, value in names.items():
        copy = next((path for one in workdirs if os.path.isfile(path := run_info.kept_code(one, value))), None)
        if copy is None:
            return ()
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(copy, target / name)
    below = (os.path.relpath(folder, folders[0]) for folder in folders)
    return tuple(str(target / one) for one in below if not one.startswith(os.pardir))


def is_kept(chains: Sequence[Chain], name: str) -> bool:
    """Returns whether there are copies of a file, a fact "code.NAME", in all of its versions."""
    return name != _OWN and None not in _versions(chains, name)


def _versions(chains: Sequence[Chain], name: str) -> list[Path | None]:
    """Returns the copy of a file that each run began with; None where there is none."""
    found = []
    for chain in chains:
        value = chain.starts[0].facts.get(name)
        path = None if value is None else Path(run_info.kept_code(chain.workdir, value))
        found.append(path if path is not None and path.is_file() else None)
    return found


def first_line_that_differs(chains: Sequence[Chain], name: str) -> str:
    """Returns, for the end of a line, the first line of a file that differs; "" if there are no copies."""
    if not is_kept(chains, name):
        return ""
    texts = [path.read_text(errors="replace").splitlines() for path in _versions(chains, name)]
    for number, (one, other) in enumerate(itertools.zip_longest(*texts, fillvalue=""), 1):
        if one != other:
            return f"; line {number}: A {one.strip()[:_LONGEST]!r}; B {other.strip()[:_LONGEST]!r}"
    return ""
