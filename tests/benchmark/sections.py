"""The benchmark's sections: each starts its participants, measures them in turn, and yields tables."""

import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmark import rounds, slow_link, startup_time, workloads
from tfdist.tools import tables

# Overrides of tfdist's config.
CHANGES = {
    "float32": {},
    "bfloat16": {"train.precision": "bfloat16"},
    "float16": {"train.precision": "float16"},
    "xla": {"train.xla": True},
}
PEERS = ("keras", "ddp")
# One dict for each line of a table; see `rows`.
Rows = list[dict[str, Any]]
_SIZES = (0.001, 1, 10, 100)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The values of the command's flags that the sections read."""

    workloads: list[str]
    workers: list[int]
    variants: list[str]
    peers: list[str]
    # Length of a turn, and turns of each participant.
    seconds: float
    rounds: int
    # One CPU core for each worker.
    pin: bool


def pytorch_problem() -> str:
    """Why the PyTorch peer cannot run, for a message; empty if it can."""
    return "" if importlib.util.find_spec("torch") else "PyTorch is not installed: pip install torch"


def show(rows: Rows) -> None:
    """Prints one table."""
    reference = next(row["name"] for row in rows if row["ratio"] == 1.0)
    header = ("", "ms, median", "CPU", f"times {reference}", "peak MB")
    names = ("name", "milliseconds", "cpu_milliseconds", "ratio", "peak_mb")
    cells = [[row[name] for name in names] for row in rows]
    print(f"{rows[0]['title']}\n{tables.text(header, cells)}\n", flush=True)


def make_job(kind: str, workers: int = 1, **more: Any) -> dict[str, Any]:
    """The job of a participant, see `cases`."""
    return {
        "kind": kind,
        "processes": workers,
        "workers": workers,
        "environment": {},
        **more,
    }


def take_turns(
    jobs: Mapping[str, Any], options: Options, folder: Path, hosts: rounds.Hosts | None = None
) -> dict[str, rounds.Result]:
    """Starts the participants and measures their steps in turn."""
    with rounds.start(jobs, folder, pin=options.pin, hosts=hosts) as participants:
        return rounds.take_turns(participants, "step", seconds=options.seconds, rounds=options.rounds)


def _steps(options: Options, folder: Path, hosts: rounds.Hosts | None) -> Iterator[Rows]:
    """Training steps: a table for each workload and number of workers."""
    for name in options.workloads:
        workload = workloads.WORKLOADS[name]
        workloads.write_data(workload, folder)
        for workers in options.workers if hosts is None else [2]:
            jobs = _step_jobs(name, workers, options, hosts)
            title = f"{workload.title}, batch {workload.batch}, {workers} worker{'s' if workers > 1 else ''}"
            results = take_turns(jobs, options, folder, hosts)
            yield rows("steps", title, results, f"tfdist {options.variants[0]}")


def _step_jobs(name: str, workers: int, options: Options, hosts: rounds.Hosts | None) -> dict[str, dict[str, Any]]:
    jobs = {}
    if workers == 1:
        jobs["floor"] = make_job("floor", workload=name, overrides={})
        jobs["floor, fused, looped"] = make_job("looped_floor", workload=name, overrides={})
        if any("bfloat16" in variant for variant in options.variants):
            half = CHANGES["bfloat16"]
            jobs["the same, bfloat16"] = make_job("looped_floor", workload=name, overrides=half)
    jobs["textbook"] = make_job("textbook", workers, workload=name, overrides={})
    if "keras" in options.peers and workers == 1:
        jobs["Keras fit"] = make_job("keras_fit", workload=name, overrides={}, stride=1, xla=False)
        if name == "mlp":  # 50 steps of the other workloads last longer than a turn.
            jobs["Keras fit, 50 steps per execution"] = jobs["Keras fit"] | {"stride": 50}
    elif "keras" in options.peers:
        print("Keras' fit is skipped: Keras 3 fails in it with several workers (keras#20329).", flush=True)
    if "ddp" in options.peers:
        jobs |= pytorch_jobs(name, workers, options, slow_link.INTERFACE if hosts else "lo")
    for variant in options.variants:
        overrides = {field: value for word in variant.split("+") for field, value in CHANGES[word].items()}
        jobs[f"tfdist {variant}"] = make_job("tfdist", workers, workload=name, overrides=overrides)
    return jobs


def pytorch_jobs(workload: str, workers: int, options: Options, interface: str) -> dict[str, dict[str, Any]]:
    """The jobs of PyTorch, alone or with DDP over a network interface, for each precision that it has, too."""
    jobs = {}
    for variant in options.variants:
        half = "bfloat16" in variant.split("+")
        name = f"PyTorch {'DDP' if workers > 1 else 'alone'} {'bfloat16' if half else 'float32'}"
        jobs[name] = make_job("ddp", workers, workload=workload, bfloat16=half)
        jobs[name]["environment"] = {"GLOO_SOCKET_IFNAME": interface}
    return jobs


def _inputs(options: Options, folder: Path, hosts: rounds.Hosts | None) -> Iterator[Rows]:
    """Input pipelines on one worker, and on one worker of several."""
    from tests.benchmark import input_pipelines  # With TensorFlow.

    del hosts
    input_pipelines.write_small(folder)
    for title, ours, classic in (
        ("memory", "memory", "memory"),
        ("records", "array_record", "tfrecord"),
        ("files", "files", "files"),
    ):
        jobs = {"classic": make_job("classic_input", images="small", form=classic)}
        for workers in (1, 2, 4):
            jobs[f"tfdist, 1 of {workers}"] = make_job("input", images="small", form=ours) | {"workers": workers}
        results = take_turns(jobs, options, folder)
        yield rows("input", f"images of 32x32 in {title}, a global batch of 128", results, "tfdist, 1 of 1")


def _all_reduces(options: Options, folder: Path, hosts: rounds.Hosts | None) -> Iterator[Rows]:
    """All-reduces over two workers."""
    jobs = {
        name: make_job("all_reduce", 2, communication={"implementation": implementation}, megabytes=_SIZES)
        for name, implementation in (("TensorFlow's ring", "ring"), ("tfdist", "auto"))
    }
    with rounds.start(jobs, folder, pin=options.pin, hosts=hosts) as participants:
        for size in _SIZES:
            results = rounds.take_turns(participants, str(size), seconds=options.seconds, rounds=options.rounds)
            yield rows("all_reduce", f"sum of {size:g} MB over two workers", results, "tfdist")


def _starts(options: Options, folder: Path, hosts: rounds.Hosts | None) -> Iterator[Rows]:
    """The time to the first finished step."""
    del hosts
    workloads.write_data(workloads.WORKLOADS["mlp"], folder)
    core = min(os.sched_getaffinity(0)) if options.pin else None
    taken = startup_time.measure(folder, rounds=options.rounds, core=core)
    results = {name: rounds.Result(milliseconds=1e3 * seconds) for name, seconds in taken.items()}
    yield rows("start", "from the command to the first finished step of an MLP", results, "tfdist")


def rows(section: str, title: str, results: dict[str, rounds.Result], ours: str) -> Rows:
    """The rows of a table; ratios are to the participant `ours`."""
    reference = results[ours].milliseconds
    return [
        {
            "section": section,
            "title": title,
            "name": name,
            **dataclasses.asdict(result),
            "ratio": result.milliseconds / reference,
        }
        for name, result in results.items()
    ]


# Name -> function of the options, a folder for data and logs, and two hosts joined by a slow link, or None: localhost.
# It yields the rows of each table as soon as they are measured, and raises ValueError: a participant failed, or there
# are fewer CPU cores than workers to pin.
SECTIONS = {"steps": _steps, "input": _inputs, "all_reduce": _all_reduces, "start": _starts}
