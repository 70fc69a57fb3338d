"""Measures tfdist on this machine's CPU cores, next to baselines: `python -m tests.benchmark`.

Sections: `steps`, the training step of three networks; `input`, the input pipelines without a model; `all_reduce`,
the sum over two workers; `start`, the time from the command to the first finished step. Baselines: the floor, one
`tf.function` with the same arithmetic on a batch in memory; and the textbook loop, as computing centres publish it.
Peers: Keras' `fit`, and PyTorch's DistributedDataParallel over gloo, which needs PyTorch. All take turns in one run,
each in its own processes. The tables show medians, and their ratio to tfdist's.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from absl import app, flags

from tests.benchmark import messages, rounds, sections, slow_link, workloads
from tfdist.launch import local_workers, processes
from tfdist.report import files


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    names = ", ".join(workloads.WORKLOADS)
    flags.DEFINE_list("sections", list(sections.SECTIONS), f"Any of {', '.join(sections.SECTIONS)}.")
    flags.DEFINE_list("workloads", list(workloads.WORKLOADS), f"What steps trains: any of {names}.")
    flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers of the section steps.")
    flags.DEFINE_list(
        "variants", ["float32"], f"Variants of tfdist: any of {', '.join(sections.CHANGES)}, or several joined by +."
    )
    flags.DEFINE_list("peers", None, f"Peers in steps: any of {', '.join(sections.PEERS)}. Default: all that can run.")
    flags.DEFINE_float("seconds", 1.0, "Length of a turn.", lower_bound=0.01)
    flags.DEFINE_integer("rounds", 5, "Number of turns of each participant.", lower_bound=1)
    flags.DEFINE_bool("pin", True, "Pin each worker to its own CPU core.")
    flags.DEFINE_string("link", None, "Join two workers by a link of this rate, such as 1gbit. Root only.")
    flags.DEFINE_string("json", None, "Also write the numbers to this file.")


def check_flags() -> None:
    """Exits with one message if a flag has an unknown value."""
    values = flags.FLAGS
    messages.check_names("sections", values.sections, sections.SECTIONS)
    messages.check_names("workloads", values.workloads, workloads.WORKLOADS)
    messages.check_names("variants", "+".join(values.variants).split("+"), sections.CHANGES)
    messages.check_names("peers", values.peers or [], sections.PEERS)
    if not all(word.isdecimal() and int(word) > 0 for word in values.workers):
        sys.exit(f"--workers must be numbers from 1 on, as 1,2. Received: {','.join(values.workers)!r}")
    problem = sections.pytorch_problem() if "ddp" in (values.peers or []) else ""
    if problem:
        sys.exit(f"--peers=ddp: {problem}. Or remove ddp.")


def check_machine() -> None:
    """Checks, before anything is measured, that this machine can measure what the flags name.

    Raises:
        ValueError: another launcher started several processes, or there are fewer CPU cores than workers to pin.
    """
    values = flags.FLAGS
    try:
        local_workers.check_single_process(os.environ)
    except ValueError as error:
        raise ValueError(f"start the benchmark once, outside of other launchers: {error}") from None
    if values.pin:
        counts = [2] if "all_reduce" in values.sections else []
        if "steps" in values.sections:
            counts += map(int, values.workers) if values.link is None else [2]
        rounds.choose_cores(max(counts, default=1))


def measure() -> None:
    """Measures the sections that the flags name, and prints and writes each table."""
    values = flags.FLAGS
    peers, problem = values.peers, sections.pytorch_problem()
    if peers is None:
        peers = ["keras"] if problem else [*sections.PEERS]
        if problem and "steps" in values.sections:
            print(f"The PyTorch peer is skipped: {problem}.", flush=True)
    options = sections.Options(
        workloads=values.workloads,
        workers=[int(word) for word in values.workers],
        variants=values.variants,
        peers=peers,
        seconds=values.seconds,
        rounds=values.rounds,
        pin=values.pin,
    )
    found: sections.Rows = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(processes.cleanup_on_sigterm())  # Removes the folder and the link.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-benchmark-")))
        hosts = stack.enter_context(slow_link.slow(values.link)) if values.link else None
        for section in values.sections:
            print(f"measuring {section} ...", file=sys.stderr, flush=True)
            for rows in sections.SECTIONS[section](options, folder, hosts):
                found += rows
                if values.json:  # After each table: a later one may fail or be interrupted.
                    files.write_json(values.json, {"link": values.link, "rows": found})
                sections.show(rows)


def main(argv: list[str]) -> None:
    """Runs the benchmark after its flags are parsed; an error of the user ends it with one message."""
    if argv[1:]:
        sys.exit(f"Arguments without a flag are not supported. Received: {argv[1]!r}")
    check_flags()
    with messages.one_message("tests.benchmark"):
        check_machine()
        measure()


if __name__ == "__main__":
    define_flags()
    app.run(main)
