"""How much of the communication of a step is hidden behind its computation: `python -m tests.benchmark.overlap`.

Two workers train over links of several rates, with one and with two threads for ops. Beside them, in turn: one worker,
and PyTorch's DDP, if PyTorch is installed; then the sum of as many numbers as the network has weights, without a step.
The hidden share of that sum is 1 - (two - one) / sum: 100 % if the step of two workers takes as long as that of one,
0 % if it is longer by the time of the sum, and less where sending slows the computation. Links other than "lo", this
machine's own, are network namespaces: Linux, root only.
"""

import contextlib
import tempfile
from pathlib import Path

from absl import app, flags

from tests.benchmark import messages, rounds, sections, slow_link, workloads
from tfdist.launch import processes
from tfdist.tools import measure as measure_lib
from tfdist.tools import tables

# Megabytes of the gradients.
SIZES = {"resnet50v2": 94, "transformer": 12.7}
THREADS = (1, 2)
HEADER = ("link", "threads", "one worker", "sum alone", "two workers", "hidden", "DDP")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_list("links", ["lo", "1gbit", "100mbit"], 'Rates of the links, or "lo".')
    flags.DEFINE_list("workloads", list(SIZES), f"Any of {', '.join(SIZES)}.")
    flags.DEFINE_bool("pin", True, "Pin each worker to a CPU core; otherwise all workers have all cores.")
    flags.DEFINE_float("seconds", 2.0, "Length of a turn.", lower_bound=0.01)
    flags.DEFINE_integer("rounds", 5, "Number of turns of each participant.", lower_bound=1)


def measure(link: str, workload: str, folder: Path, *, pin: bool, seconds: float, turns: int) -> list[tuple]:
    """Returns a row of `HEADER` for each of `THREADS`, in milliseconds a step."""
    options = sections.Options(
        workloads=[workload], workers=[2], variants=["float32"], peers=[], seconds=seconds, rounds=turns, pin=pin
    )
    workloads.write_data(workloads.WORKLOADS[workload], folder)
    size = SIZES[workload]
    found: dict[str, rounds.Result] = {}
    with contextlib.ExitStack() as stack:
        hosts = None if link == "lo" else stack.enter_context(slow_link.slow(link))
        jobs = {"one": sections.make_job("tfdist", workload=workload, overrides={})}
        for threads in THREADS:
            jobs[f"{threads}"] = sections.make_job("tfdist", 2, workload=workload, overrides={})
            jobs[f"{threads}"]["environment"] = {"TF_NUM_INTEROP_THREADS": f"{threads}"}
        if not sections.pytorch_problem():
            jobs |= sections.pytorch_jobs(workload, 2, options, slow_link.INTERFACE if hosts else "lo")
        found |= sections.take_turns(jobs, options, folder, hosts)
        sums = {"sum": sections.make_job("all_reduce", 2, communication={}, megabytes=[size])}
        with rounds.start(sums, folder, pin=pin, hosts=hosts) as participants:
            found |= rounds.take_turns(participants, str(size), seconds=seconds, rounds=turns)
    one, alone = (found[name].milliseconds for name in ("one", "sum"))
    ddp = next((result.milliseconds for name, result in found.items() if "DDP" in name), float("nan"))
    rows = []
    for threads in THREADS:
        two = found[f"{threads}"].milliseconds
        rows.append((link, threads, one, alone, two, f"{1 - (two - one) / alone:.0%}", ddp))
    return rows


def main(argv: list[str]) -> None:
    """Runs the benchmark after its flags are parsed; an error of the user ends it with one message."""
    values = flags.FLAGS
    messages.check_names("workloads", values.workloads, SIZES)
    with messages.one_message("tests.benchmark.overlap"), processes.cleanup_on_sigterm():
        for workload in values.workloads:
            print(f"{workloads.WORKLOADS[workload].title}, ms a step, {measure_lib.machine()}", flush=True)
            for link in values.links:
                with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder:
                    turns = {"pin": values.pin, "seconds": values.seconds, "turns": values.rounds}
                    rows = measure(link, workload, Path(folder), **turns)
                print(tables.text(HEADER, rows), flush=True)


if __name__ == "__main__":
    define_flags()
    app.run(main)
