"""Makes the golden runs and writes their values for this class of machines to values.json.

usage: python tests/golden/record.py [--check] [--repeat=2] [RUN ...]

Record on a commit that is known to be right; the values of other classes of machines stay. Each run is made `--repeat`
times, whose bits must agree. `--check` writes nothing and compares, as test_golden.py does.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import golden_runs as golden


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("runs", nargs="*", choices=[[], *golden.RUNS])
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
