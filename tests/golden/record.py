"""Makes the golden runs and writes their values for this class of machines to values.json.

usage: python tests/golden/record.py [--check] [--repeat=2] [RUN ...]
       python tests/golden/record.py --interrupted=DIRECTORY

Record on a commit that is known to be right; the values of other classes of machines stay. Each run is made `--repeat`
times, whose bits must agree. `--check` writes nothing and compares, as test_golden.py does. `--interrupted` makes a
folder as workdir_ebcda36: workdirs of interrupted runs, and beside each what the uninterrupted run comes to.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import golden_runs as golden
import numpy as np

# The step after which a run is interrupted: within an epoch, and no regular checkpoint.
_INTERRUPTED_AFTER = {"config": 11, "script": 9}
# What environment.json says of the machine; nothing of it is read again.
_NEUTRAL = {"command": ["python"], "directory": ".", "host": "host", "platform": "Linux", "workers": []}


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--interrupted", type=pathlib.Path)
    parser.add_argument("runs", nargs="*", choices=[[], *golden.RUNS])
    options = parser.parse_args()
    if options.interrupted is not None:
        for name in golden.RESUMED:
            interrupt(name, options.interrupted / name)
    else:
        cases = [case for case in golden.CASES if not options.runs or case[0] in options.runs]
        sys.exit(record(cases, options.repeat, check=options.check))


def record(cases: list[tuple[str, str]], repeat: int, *, check: bool) -> int:
    """Makes the runs, and writes or compares their values; returns the exit code."""
    values = json.loads(golden.VALUES.read_text()) if golden.VALUES.exists() else {}
    failed = False
    for name, topology in cases:
        runs = [_train(name, topology) for _ in range(1 if check else repeat)]
        classes = values.setdefault(f"{name}/{topology}", {})
        known = classes if check else {golden.machine_class(): runs[0]}
        problems = [problem for run in runs for problem in golden.differences(run, known, name)]
        print(f"{name} on {topology}: {'; '.join(problems[:3]) or 'equal'}", flush=True)
        failed = failed or bool(problems)
        classes[golden.machine_class()] = runs[0]
    if not check and not failed:
        golden.VALUES.write_text(json.dumps(values, indent=1) + "\n")
    return int(failed)


def _train(name: str, topology: str) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        return golden.train(name, topology, pathlib.Path(directory))


def interrupt(name: str, directory: pathlib.Path) -> None:
    """Leaves an interrupted run in directory/workdir, and the results of the uninterrupted one beside it."""
    run, step = golden.RESUMED[name], _INTERRUPTED_AFTER[name]
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = pathlib.Path(folder, "whole"), pathlib.Path(folder, "parts")
        found = golden.train(run, "one_device", whole)
        golden.train(run, "one_device", parts, stop_after=step)
        _make_neutral(parts / "workdir")
        directory.mkdir(parents=True)
        shutil.copytree(parts / "workdir", directory / "workdir")
        np.savez(directory / "final.npz", **golden.final_arrays(whole / "workdir"))
    (directory / "uninterrupted.json").write_text(json.dumps({golden.machine_class(): found}, indent=1) + "\n")


def _make_neutral(workdir: pathlib.Path) -> None:
    """Takes the names of this machine and of its folders out of the files that are for people alone."""
    environment, metrics = workdir / "environment.json", workdir / "metrics.jsonl"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | _NEUTRAL, indent=2) + "\n")
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if json.loads(line)["kind"] not in ("workers", "environment")))
    for path in workdir.glob("tensorboard/events.*"):
        path.rename(path.with_name(".".join([*path.name.split(".")[:4], "host", "1"])))


if __name__ == "__main__":
    main()
