"""Plants faults in a copy of the repository, one after another, and says which test finds each.

    python -m tests.planted                    all faults of faults.toml, each with its own test files
    python -m tests.planted NAME...            some faults
    python -m tests.planted --tests=all NAME   the default tests: slow

Each fault would harm a user, and the default tests must find it, also after tests were removed. A test has found a
fault if it fails with it, and passes without. The exit code is 1 if a fault was not found.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it.
    import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[2]
TABLE = pathlib.Path(__file__).with_name("faults.toml")
NOT_FOUND = "NOT FOUND"
# Seconds for the tests of a fault. Tests that do not end have found it: nobody overlooks that.
_SECONDS = 600
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def read_faults() -> dict[str, dict]:
    """Returns the faults by name; ValueError names one whose `old` is not once in its file."""
    faults = tomllib.loads(TABLE.read_text())
    for name, fault in faults.items():
        count = (ROOT / fault["file"]).read_text().count(fault["old"])
        if count != 1:
            raise ValueError(f"{name}: `old` occurs {count} times in {fault['file']}, and must occur once.")
        if missing := [path for path in fault["tests"] if not (ROOT / path).is_file()]:
            raise ValueError(f"{name}: there is no {', '.join(missing)}.")
    return faults


def copy_repository(to: pathlib.Path) -> None:
    """Copies the repository as it is now, without what git ignores."""
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, to], check=True)
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
        else:
            (to / name).unlink(missing_ok=True)


def run(copy: pathlib.Path, *words: str) -> tuple[int | None, str]:
    """Runs Python in the copy, with its tfdist; returns the exit code, None after `_SECONDS`, and the output."""
    env = os.environ | {"PYTHONPATH": str(copy)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, *words], cwd=copy, env=env, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=_SECONDS)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:  # With what the tests have started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def find(copy: pathlib.Path, fault: dict, tests: list[str]) -> str:
    """Returns the test that finds a fault in the copy, or `NOT_FOUND`."""
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    file, whole = copy / fault["file"], (ROOT / fault["file"]).read_text()
    file.write_text(whole.replace(fault["old"], fault["new"]))
    try:
        code, output = run(copy, *pytest, *tests)
    finally:
        file.write_text(whole)
    if code in (0, None):
        return NOT_FOUND if code == 0 else f"no end after {_SECONDS} s"
    if code == 2:  # A signal of the test's own has ended pytest.
        return "the tests do not run to their end"
    if not (failed := _FAILED.search(output)):
        raise RuntimeError(f"pytest ended with {code}:\n{output[-3000:]}")
    code, output = run(copy, *pytest, failed[1])
    return failed[1] if code == 0 else f"{NOT_FOUND}: {failed[1]} fails without the fault, too"


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__.partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="Faults. Default: all.")
    parser.add_argument(
        "--tests", default="own", choices=["own", "all"], help="Those of the table, or all default ones."
    )
    args, faults, found = parser.parse_args(), read_faults(), {}
    if unknown := set(args.names) - faults.keys():
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = pathlib.Path(folder, "copy")
        copy_repository(copy)
        _, imported = run(copy, "-c", "import tfdist; print(tfdist.__file__)")
        if pathlib.Path(imported.strip()) != copy / "tfdist" / "__init__.py":
            raise RuntimeError(f"The tests would not import the copy: {imported}")
        for name in args.names or faults:
            started = time.monotonic()
            found[name] = find(copy, faults[name], [] if args.tests == "all" else faults[name]["tests"])
            print(f"{name:40} {time.monotonic() - started:4.0f} s  {found[name]}", flush=True)
    lost = [name for name, test in found.items() if test.startswith(NOT_FOUND)]
    print(f"{len(found) - len(lost)} of {len(found)} faults found" + (f"; not: {', '.join(lost)}" if lost else ""))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
