"""Which test files the files changed since the branch left `main` can reach, the nearest first.

A file reaches another that it imports, in functions too, and one that it names by a dotted path ("tfdist.main",
"lab:linear"). Tests reach files that they name by a path, or outside Python by a name ("tests/configs/gpu.py",
"own_step.md"). Docstrings and comments do not count.
"""

import ast
import collections
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping

# `tfdist.fit` is found by way of these names, which a file that imports one module of tfdist does not use.
_FRONT_DOOR = "tfdist/__init__.py"
# What these name is no import of theirs: defaults of a config, and modules that a server imports for other tests.
_NAME_ONLY = (_FRONT_DOOR, "tfdist/config/schema.py", "tests/support/forked.py")
_ROOTS = ("", "tests/support/", "tests/unit/cluster/")
_WORD = re.compile(r"([\w./-]*\w)(:\w)?")


def changed_files(root: pathlib.Path) -> set[str]:
    """Files of the repository that differ from where this branch left `main`, uncommitted and new ones included."""
    (base,) = _git(root, "merge-base", "main", "HEAD")
    return {*_git(root, "diff", "--name-only", base), *_git(root, "ls-files", "--others", "--exclude-standard")}


def sources(root: pathlib.Path) -> dict[str, str]:
    """Path -> text of each Python file of the repository, new ones included, and path -> "" of all other files."""
    paths = _git(root, "ls-files", "--cached", "--others", "--exclude-standard")
    return {path: (root / path).read_text() if path.endswith(".py") else "" for path in paths if (root / path).exists()}


def _git(root: pathlib.Path, *words: str) -> list[str]:
    """The lines that a command of git prints."""
    return subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def distances(files: Mapping[str, str], changed: Iterable[str]) -> dict[str, int]:
    """Path of each file that a changed one reaches -> over how many other files; 0 for a changed one itself."""
    users = collections.defaultdict(set)
    by_name = {path.rpartition("/")[2]: path for path in files if not path.endswith(".py")}
    for path, text in files.items():
        for used in _used(path, text, files, by_name):
            users[used].add(path)
    found = dict.fromkeys(changed, 0)
    waiting = collections.deque(found)
    while waiting:
        path = waiting.popleft()
        for user in users[path] - found.keys():
            found[user] = found[path] + 1
            waiting.append(user)
    return found


def nearest(tests: Mapping[str, int], seconds: Mapping[str, float], limit: float) -> list[str]:
    """The test files to run: those that have changed themselves, and the nearest and quickest that fit into a limit.

    Args:
        tests: distance of each test file from what has changed.
        seconds: how long each takes; one without a number takes less than a second.
        limit: sum of these seconds.
    """
    chosen, total = [], 0.0
    for path in sorted(tests, key=lambda path: (tests[path], seconds.get(path, 0.0), path)):
        if total + seconds.get(path, 0.5) <= limit or tests[path] == 0:
            total += seconds.get(path, 0.5)
            chosen.append(path)
    return chosen


def _used(path: str, text: str, files: Mapping[str, str], by_name: Mapping[str, str]) -> Iterator[str]:
    """Yields the files that one file uses."""
    roots = (*_ROOTS, path.rpartition("/")[0] + "/")
    of_tests = path.startswith("tests/")
    if of_tests:  # pytest imports what it finds in the directories above.
        parts = path.split("/")
        yield from (place for n in range(1, len(parts)) if (place := "/".join([*parts[:n], "conftest.py"])) in files)
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            if "tfdist" in names:
                names += _strings(ast.parse(files[_FRONT_DOOR]))
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names = [] if path in _NAME_ONLY else list(_dotted(node.value))
            words = _WORD.findall(node.value) if of_tests else []
            yield from (found for word, _ in words if (found := by_name.get(word, word)) in files)
        for name in names:
            yield from _modules(name, roots, files)


def _strings(tree: ast.AST) -> list[str]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _dotted(text: str) -> Iterator[str]:
    """Yields the dotted paths in a text: "a.b", "a:b"."""
    yield from (word for word, function in _WORD.findall(text) if function or "." in word.strip("."))


def _modules(name: str, roots: Iterable[str], files: Mapping[str, str]) -> Iterator[str]:
    """Yields the file of a module by its dotted name, or by that of something in it, and its packages."""
    parts = name.split(".")
    for root in roots:
        for count in range(1, len(parts) + 1):
            stem = root + "/".join(parts[:count])
            yield from (path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in files)
