"""Runs scripts under Keras and under tfdist.run, and compares what they have recorded."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

import numpy as np

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

import forked  # noqa: E402
from topologies import environments  # noqa: E402

# Way -> processes, and devices of each.
WAYS = {
    "one worker": (1, 1),
    "two workers": (2, 1),
    "two devices": (1, 2),
    "three devices": (1, 3),
    "two by two": (2, 2),
}
# Largest difference of a value from Keras', relative to the largest value of its array.
TOLERANCE = 2e-4
# The same for values that depend on random numbers of each replica.
ROUGHLY = 0.5
SECONDS = 300.0
EXPECTED = re.compile(
    r"^# (draws|per replica|refused|refused on several replicas|refused on two workers|told): (.*)$", re.MULTILINE
)


@dataclasses.dataclass
class Outcome:
    """What a script did in one way: exit codes and output of each process, and what each has recorded."""

    codes: list[int | None]
    outputs: list[str]
    found: list[list[dict]]


def scripts(names: list[str]) -> list[pathlib.Path]:
    """The scripts whose names contain one of `names`, or all."""
    every = sorted(path for path in HERE.glob("*/*.py"))
    return [path for path in every if not names or any(name in f"{path.parent.name}/{path.name}" for name in names)]


def run(script: pathlib.Path, way: str, *words: str, folder: pathlib.Path | None = None) -> Outcome:
    """Runs a script with arguments in a directory of its own.

    Args:
        script: its path; it is copied.
        way: "keras", or one of WAYS.
        *words: its arguments.
        folder: where the directory is, for several starts in the same one; None: nothing is left of it.
    """
    # All processes that are forked from one have the same hashes of texts.
    start = subprocess.Popen if "# own process" in script.read_text() else forked.Popen
    with contextlib.ExitStack() as stack:
        folder = folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = folder / "work"
        for directory in (place, folder / "tmp"):
            directory.mkdir(parents=True, exist_ok=True)
        (place / script.name).write_text(script.read_text())
        workers, devices = WAYS.get(way, (1, 1))
        flags = [f"--logical_devices={devices}"] if devices > 1 else []
        command = [sys.executable, *([] if way == "keras" else ["-m", "tfdist.run", *flags]), script.name, *words]
        env = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{HERE.parent}", "TMPDIR": f"{folder}/tmp"}
        running = []
        for rank, environment in enumerate(environments(workers)):
            environment = {**environment, **env, "FIELD_OUT": f"{folder}/out{rank}"}
            with open(f"{folder}/log{rank}", "wb") as log:
                running.append(start(command, cwd=place, env=environment, stdout=log, stderr=subprocess.STDOUT))
        codes, limit = [], time.monotonic() + SECONDS
        for process in running:
            try:
                codes.append(process.wait(max(1.0, limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes.append(None)
        outputs = [(folder / f"log{rank}").read_text(errors="replace") for rank in range(workers)]
        files = [sorted(folder.glob(f"out{rank}-*.jsonl")) for rank in range(workers)]
        found = [[json.loads(line) for file in one for line in file.read_text().splitlines()] for one in files]
        return Outcome(codes, outputs, found)


def difference(expected: object, value: object) -> float:
    """The largest relative difference of two recorded values; infinite if they are not alike."""
    if isinstance(expected, dict) and isinstance(value, dict):
        if list(expected) != list(value):
            return float("inf")
        return max([0.0, *(difference(expected[name], value[name]) for name in expected)])
    try:
        one, other = np.asarray(expected, np.float64), np.asarray(value, np.float64)
    except (TypeError, ValueError):
        if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
            return max([0.0, *(difference(a, b) for a, b in zip(expected, value, strict=True))])
        return 0.0 if expected == value else float("inf")
    if one.shape != other.shape or not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    if one.size == 0:
        return 0.0
    scale = max(float(np.nanmax(np.abs(one), initial=0.0)), 1e-3)
    return float(np.nanmax(np.abs(one - other), initial=0.0)) / scale


def verdict(script: pathlib.Path, keras: Outcome, ours: Outcome, way: str) -> tuple[str, str]:
    """The verdict of one way, and what it is based on."""
    expected = dict(EXPECTED.findall(script.read_text()))
    said = "\n".join(ours.outputs)
    if way != "one worker" and "refused on several replicas" in expected:
        expected["refused"] = expected["refused on several replicas"]
    if way in ("two workers", "two by two") and "refused on two workers" in expected:
        expected["refused"] = expected["refused on two workers"]
    if "refused" in expected:
        followed = expected["refused"] in said and all(code not in (0, None) for code in ours.codes)
        return ("refused", "") if followed else ("wrong", f"not refused: {ours.codes}")
    if WAYS[way][0] > 1 and expected.get("told", "") not in said:
        return "wrong", "not told"
    if ours.codes != keras.codes * len(ours.codes):
        return "wrong", f"exit codes {ours.codes} for {keras.codes[0]}: {last_line(said)}"
    differences = [difference(keras.found[0], found) for found in ours.found]
    between = difference(ours.found[0], ours.found[-1])
    if between > 1e-6:
        return "wrong", f"workers differ by {between:.0e}"
    if max(differences) <= TOLERANCE:
        return "equal", f"{max(differences):.0e}"
    if "per replica" in expected and way != "one worker":
        told = expected["per replica"] in said
        return ("per replica", "") if told else ("wrong", f"not told; differs by {max(differences):.0e}")
    if "draws" in expected and max(differences) <= ROUGHLY:
        return "equal draws", f"{max(differences):.0e}"
    return "wrong", f"differs by {max(differences):.0e}: {where(keras.found[0], ours.found[0])}"


def where(expected: list, found: list) -> str:
    """Names the recorded values that differ."""
    if len(expected) != len(found):
        return f"{len(found)} records for {len(expected)}"
    parts = [
        f"{name} {difference(one[name], other.get(name)):.0e}"
        for one, other in zip(expected, found, strict=True)
        for name in one
        if difference(one[name], other.get(name)) > TOLERANCE
    ]
    return ", ".join(parts)


def last_line(text: str) -> str:
    """The line of an output that says most: tfdist's own, or the last."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("tfdist:")]
    return (own or lines or [""])[-1][:300]


def trial(script: pathlib.Path, ways: Iterable[str] = WAYS) -> dict[str, tuple[str, str]]:
    """Way -> verdict and reason."""
    keras = run(script, "keras")
    if keras.codes != [0] and "# exits" not in script.read_text():
        return {"keras": ("wrong", last_line(keras.outputs[0]))}
    return {way: verdict(script, keras, run(script, way), way) for way in ways}


def main(arguments: list[str]) -> int:
    """Prints a line for each script and the sums; returns 1 if one is wrong."""
    ways = [one for one in arguments if one in WAYS] or list(WAYS)
    chosen, sums = scripts([one for one in arguments if one not in WAYS]), {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for script, verdicts in zip(chosen, pool.map(lambda script: trial(script, ways), chosen), strict=True):
            cells = [f"{way}: {name} {why}".rstrip() for way, (name, why) in verdicts.items()]
            print(f"{script.parent.name}/{script.stem:30s} {' | '.join(cells)}", flush=True)
            names_found = {name for name, _ in verdicts.values()}
            for name in ("wrong", "refused", "per replica", "equal draws", "equal"):
                if name in names_found:
                    sums[name] = sums.get(name, 0) + 1
                    break
    print(", ".join(f"{count} {name}" for name, count in sorted(sums.items())))
    forked.end_servers()
    return int("wrong" in sums)
