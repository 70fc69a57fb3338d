"""Measures tfdist on this machine's processors, next to honest baselines: `python -m tfdist benchmark`.

Sections: `steps`, the training step of three networks; `input`, the pipelines without a model; `all_reduce`, the sum
over two workers; `start`, from the command to the first finished step. The baselines: the bare floor, one `tf.function`
over the same mathematics on a batch in memory; and the textbook loop as computing centres publish it. Peers: Keras' own
`fit`, and PyTorch's DistributedDataParallel over gloo where it is installed. All take turns within one run, each in
processes of its own, and the table gives medians and what multiple of tfdist's time they take.
"""

import contextlib
import dataclasses
import errno
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.launch import local_workers, processes
from tfdist.report import files
from tfdist.tools import tables
from tfdist.tools.benchmark import rounds, slow_link, startup_time, workloads

# Overrides of tfdist's config.
CHANGES = {
    "float32": {},
    "bfloat16": {"train.precision": "bfloat16"},
    "float16": {"train.precision": "float16"},
    "compressed": {"communication.dtype": "bfloat16"},
    "one_pack": {"communication.bytes_per_pack": 0},
    "xla": {"train.xla": True},
}
SECTIONS = ("steps", "input", "all_reduce", "start")
PEERS = ("keras", "ddp")
Rows = list[dict[str, Any]]
_SIZES = (0.001, 1, 10, 100)


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_list("sections", list(SECTIONS), f"Any of {', '.join(SECTIONS)}.")
    flags.DEFINE_list(
        "works", list(workloads.WORKLOADS), f"What is trained in steps: any of {', '.join(workloads.WORKLOADS)}."
    )
    flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers of the section steps.")
    flags.DEFINE_list("variants", ["float32"], f"tfdist's own: any of {', '.join(CHANGES)}, or several joined by +.")
    flags.DEFINE_list(
        "peers", None, f"Any of {', '.join(PEERS)}, in steps; none where empty. By default all that are installed."
    )
    flags.DEFINE_float("seconds", 1.0, "How long a turn lasts.", lower_bound=0.01)
    flags.DEFINE_integer("rounds", 5, "How many turns each takes.", lower_bound=1)
    flags.DEFINE_bool("pin", True, "Give each worker one processor of its own.")
    flags.DEFINE_string("link", None, "Join two workers by a link of this rate, such as 1gbit. Root only.")
    flags.DEFINE_string("json", None, "Also write the numbers to this file.")


def _overrides(variant: str) -> dict[str, Any]:
    return {field: value for word in variant.split("+") for field, value in CHANGES[word].items()}


def _job(kind: str, workers: int = 1, *, ours: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "processes": workers,
        "workers": workers,
        "environment": {},
        "keep_freed_memory": ours,
        **more,
    }


def steps(folder: Path, place: rounds.Bench | None) -> Iterator[Rows]:
    """Measures training steps: a table for each work and number of workers."""
    for name in flags.FLAGS.works:
        work = workloads.WORKLOADS[name]
        workloads.write_data(work, folder)
        for workers in map(int, flags.FLAGS.workers) if place is None else [2]:
            jobs = {}
            if workers == 1:
                jobs["floor"] = _job("floor", work=name, overrides={}, ours=False)
                jobs["floor, fused, looped"] = _job("looped_floor", work=name, overrides={}, ours=False)
                if any("bfloat16" in variant for variant in flags.FLAGS.variants):
                    half = CHANGES["bfloat16"]
                    jobs["the same, bfloat16"] = _job("looped_floor", work=name, overrides=half, ours=False)
            jobs["textbook"] = _job("textbook", workers, work=name, overrides={}, ours=False)
            jobs |= _peers(name, workers, place)
            for variant in flags.FLAGS.variants:
                jobs[f"tfdist {variant}"] = _job("tfdist", workers, work=name, overrides=_overrides(variant))
            with rounds.open_bench(jobs, folder, pin=flags.FLAGS.pin, place=place) as contestants:
                results = rounds.take_turns(contestants, "step", seconds=flags.FLAGS.seconds, rounds=flags.FLAGS.rounds)
            title = f"{work.title}, batch {work.batch}, {workers} worker(s)"
            yield _rows("steps", title, results, f"tfdist {flags.FLAGS.variants[0]}")


def _peers(work: str, workers: int, place: rounds.Bench | None) -> dict[str, dict[str, Any]]:
    jobs = {}
    chosen = installed_peers() if flags.FLAGS.peers is None else flags.FLAGS.peers
    if "keras" in chosen and workers == 1:
        jobs["Keras fit"] = _job("keras_fit", work=work, overrides={}, stride=1, ours=False)
        if work == "mlp":  # Of the others, so many steps last longer than a turn.
            many = _job("keras_fit", work=work, overrides={}, stride=50, ours=False)
            jobs["Keras fit, 50 steps per execution"] = many
    elif "keras" in chosen:
        print("Keras' fit is left out: Keras 3 fails in it with several workers (keras#20329).", flush=True)
    if "ddp" in chosen:
        interface = {"GLOO_SOCKET_IFNAME": slow_link.INTERFACE if place else "lo"}
        for variant in flags.FLAGS.variants:
            words = [word for word in variant.split("+") if word in ("bfloat16", "compressed")]
            told = {word: word in words for word in ("bfloat16", "compressed")}
            name = " ".join(["PyTorch", "DDP" if workers > 1 else "alone", "+".join(words) or "float32"])
            jobs[name] = _job("ddp", workers, work=work, ours=False, **told) | {"environment": interface}
    return jobs


def installed_peers() -> list[str]:
    """The peers that this Python can import."""
    return [name for name in PEERS if name != "ddp" or importlib.util.find_spec("torch")]


def inputs(folder: Path) -> Iterator[Rows]:
    """Measures pipelines on one worker, and on one of several."""
    for source in ("memory", "records", "files"):
        jobs = {"classic": _job("classic_input", source=source)}
        for workers in (1, 2, 4):
            jobs[f"tfdist, 1 of {workers}"] = _job("input", source=source) | {"workers": workers}
        with rounds.open_bench(jobs, folder, pin=flags.FLAGS.pin) as contestants:
            results = rounds.take_turns(contestants, "step", seconds=flags.FLAGS.seconds, rounds=flags.FLAGS.rounds)
        yield _rows("input", f"images of 32x32 in {source}, a global batch of 128", results, "tfdist, 1 of 1")


def all_reduces(folder: Path, place: rounds.Bench | None) -> Iterator[Rows]:
    """Measures sums over two workers."""
    jobs = {
        "TensorFlow as it is": _job("all_reduce", 2, ours=False, communication={}, megabytes=_SIZES),
        "tfdist": _job("all_reduce", 2, communication={}, megabytes=_SIZES),
        "tfdist compressed": _job("all_reduce", 2, communication={"dtype": "bfloat16"}, megabytes=_SIZES),
        "tfdist one pack": _job("all_reduce", 2, communication={"bytes_per_pack": 0}, megabytes=_SIZES),
    }
    with rounds.open_bench(jobs, folder, pin=flags.FLAGS.pin, place=place) as contestants:
        for size in _SIZES:
            results = rounds.take_turns(contestants, str(size), seconds=flags.FLAGS.seconds, rounds=flags.FLAGS.rounds)
            yield _rows("all_reduce", f"sum of {size:g} MB over two workers", results, "tfdist")


def start(folder: Path) -> Iterator[Rows]:
    """Measures the time to the first finished step."""
    workloads.write_data(workloads.WORKLOADS["mlp"], folder)
    core = min(os.sched_getaffinity(0)) if flags.FLAGS.pin else None
    taken = startup_time.measure(folder, rounds=flags.FLAGS.rounds, core=core)
    results = {
        name: rounds.Result(milliseconds=1e3 * median, best_milliseconds=1e3 * best)
        for name, (median, best) in taken.items()
    }
    yield _rows("start", "from the command to the first finished step of an MLP", results, "tfdist")


def _rows(section: str, title: str, results: dict[str, rounds.Result], ours: str) -> Rows:
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


def show(rows: Rows) -> None:
    """Prints one table."""
    header = ("", "ms, median", "best", "processor", f"times {_reference(rows)}", "peak MB")
    cells = [
        (r["name"], r["milliseconds"], r["best_milliseconds"], r["cpu_milliseconds"], r["ratio"], r["peak_mb"])
        for r in rows
    ]
    print(f"{rows[0]['title']}\n{tables.text(header, cells)}\n", flush=True)


def _reference(rows: Rows) -> str:
    return next(row["name"] for row in rows if row["ratio"] == 1.0)


def check_machine() -> None:
    """Finds out before anything is measured that this process cannot measure what the flags say, or not keep it.

    Raises:
        ValueError: another launcher has started several of it, workers cannot each have a processor, or --json cannot
            be written.
    """
    try:
        local_workers.refuse_other_launchers(os.environ)
    except ValueError as error:
        raise ValueError(f"start the benchmark once, outside of other launchers: {error}") from None
    if flags.FLAGS.pin:
        counts = [2] if "all_reduce" in flags.FLAGS.sections else []
        if "steps" in flags.FLAGS.sections:
            counts += map(int, flags.FLAGS.workers) if flags.FLAGS.link is None else [2]
        rounds.processors(max(counts, default=1))
    if flags.FLAGS.json:
        try:
            if os.path.isdir(flags.FLAGS.json):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with tempfile.TemporaryFile(dir=os.path.dirname(flags.FLAGS.json) or "."):
                pass
        except OSError as error:
            raise ValueError(
                f"--json={flags.FLAGS.json} cannot be written: {error.strerror}. Give another path."
            ) from None


def main(argv: list[str]) -> None:
    """Measures the sections that the flags name."""
    config_flags.flags_only(argv[1:])
    for name, chosen, known in (
        ("sections", flags.FLAGS.sections, SECTIONS),
        ("works", flags.FLAGS.works, workloads.WORKLOADS),
        ("variants", "+".join(flags.FLAGS.variants).split("+"), CHANGES),
        ("peers", flags.FLAGS.peers or [], PEERS),
    ):
        for word in chosen:
            if word not in known:
                sys.exit(f"--{name}: there is no {word!r}; there are {', '.join(known)}.")
    if not all(word.isdecimal() and int(word) > 0 for word in flags.FLAGS.workers):
        sys.exit(f"--workers must be numbers from 1 on, as 1,2. Received: {','.join(flags.FLAGS.workers)!r}")
    if "ddp" in (flags.FLAGS.peers or []) and "ddp" not in installed_peers():
        sys.exit("--peers=ddp needs PyTorch, which tfdist itself does not: pip install torch, or leave ddp out.")
    found: Rows = []
    with config_flags.one_message("tfdist benchmark"):
        check_machine()
        with contextlib.ExitStack() as stack:
            stack.enter_context(processes.cleanup_on_sigterm())  # No folder and no network of ours shall stay behind.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-benchmark-")))
            place = stack.enter_context(slow_link.slow(flags.FLAGS.link)) if flags.FLAGS.link else None
            for section in flags.FLAGS.sections:
                measured = {
                    "steps": lambda: steps(folder, place),
                    "input": lambda: inputs(folder),
                    "all_reduce": lambda: all_reduces(folder, place),
                    "start": lambda: start(folder),
                }[section]()
                for rows in measured:
                    found += rows
                    if flags.FLAGS.json:  # After each table: what comes may fail, or be interrupted.
                        files.write_json(flags.FLAGS.json, {"link": flags.FLAGS.link, "rows": found})
                    show(rows)
