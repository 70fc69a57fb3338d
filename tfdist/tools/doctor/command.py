"""Checks the environment of a job within a minute: `srun python -m tfdist doctor --config=...`.

Start it like tfdist.main, alone or under any launcher, with the same flags. The chief prints a table with one line for
each finding, and advice. Exit code 1: a finding is BAD, and a training would fail or hang. Without a config, it looks
at this machine only: processor, GPUs, versions, launcher. `doctor --gpu` measures the GPUs instead.
"""

import dataclasses
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.cluster import process_exit
from tfdist.cluster.discovery import slurm_job
from tfdist.config import flags as config_flags
from tfdist.config import tensorflow_log
from tfdist.config.command_line import tool_words, words
from tfdist.report import files, process_info
from tfdist.tools import tables
from tfdist.tools.doctor import checks, gpus, this_machine
from tfdist.tools.doctor.checks import BAD, OK, Finding
from tfdist.training import features

_STEPS = 3


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_bool("gpu", False, "Without --config: measure GPUs, links, all-reduce and steps in each precision.")
    if "--gpu" in sys.argv:
        return
    config_flags.define_config()
    flags.DEFINE_string("workdir", None, "Workdir of the planned run. Default: runs/NAME for NAME.py.")
    flags.DEFINE_float("job_minutes", None, "Time limit of the planned job, as of sbatch --time.", lower_bound=0.0)
    flags.DEFINE_float("seconds", 2.0, "Seconds for which reading is measured.", lower_bound=0.1)


def parse(argv: list[str]) -> list[str]:
    """Parses the command line; a config is not required."""
    given = [word for word in words.free(argv[1:]) if word[:1] != "-"] or words.config_path(argv[1:])
    if given and "--gpu" in argv:
        sys.exit("tfdist doctor: --gpu measures this machine: leave out the config, or --gpu.")
    if given or "--gpu" in argv:
        return config_flags.parse(argv)
    rest = tool_words.parse_words(argv)
    config_flags.flags_only(rest[1:])
    return rest


def run_without_config() -> int:
    """Looks at this machine, and prints the findings; returns the exit code."""
    tensorflow_log.announce()
    findings, rank = this_machine.look(os.environ)
    code = report(findings, rank)
    if rank == 0 and not code:
        print("With a config it checks data, workers, memory and time as well: tfdist doctor my_config.py")
    return code


def run_checks() -> int:
    """Runs all checks that are possible and prints the findings; returns the exit code."""
    from tfdist.cluster import strategy
    from tfdist.cluster.devices import gpu_software

    config = flags.FLAGS["config"].value
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    findings: list[Finding] = []
    rank = 0
    try:
        features.check(config)
        findings.append(Finding("config", OK, "types, ranges and names"))
        try:
            plan, problem = strategy.plan(config.cluster, communication=config.communication), ""
        except gpu_software.GpusNotFoundError as error:
            plan, problem = strategy.plan(dataclasses.replace(config.cluster, gpus=0)), str(error)
        rank = plan.worker_spec.rank
    except ValueError as error:
        findings.append(checks.from_error("config", error))
        return report(findings, rank)
    workers = check_workers(plan, workdir, findings, problem)
    if workers and all(finding.verdict != BAD for finding in findings):
        check_training(config, plan, workdir, findings)
    return report(findings, rank)


def check_workers(plan: Any, workdir: Path, findings: list[Finding], gpu_problem: str = "") -> list[dict[str, Any]]:
    """Runs the rendezvous and compares the workers; adds to `findings`.

    Returns the metadata of each worker in rank order; [] if the rendezvous failed. `gpu_problem` says why TensorFlow
    lists no GPU although this host has some.
    """
    import keras
    import tensorflow as tf

    from tfdist.cluster.control import alone, rendezvous
    from tfdist.cluster.devices import gpu_software
    from tfdist.cluster.discovery import gpus as gpus_lib
    from tfdist.cluster.discovery import host_names

    alone.unset_proxies(os.environ)
    place = plan.worker_spec
    metadata = {
        "versions": {"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__},
        "gpus": len(plan.gpus),
        "gpu_problem": gpu_problem,
        "gpu_software": gpu_software.describe(os.environ) if plan.gpus else {},
        "gpus_visible": len(tf.config.list_physical_devices("GPU")),
        "gpus_on_node": place.gpus_on_node,
        "local_size": place.local_size,
        "unresolved": checks.unresolved(host_names.needed(place)),
        "devices": f"{plan.local_replicas} {plan.device_type}",
    }
    check = "workdir"
    try:
        files.make_workdir(workdir)
        check = "workers"
        workers = rendezvous.rendezvous(
            place,
            must_match={},
            seconds=plan.options.connect_seconds,
            metadata=metadata,
            exclusive=gpus_lib.held_gpus(place, plan.gpus),
            workdir=workdir,
        )
    except (ValueError, OSError) as error:
        findings.append(checks.from_error(check, error))
        return []
    hosts = ", ".join(f"{worker['rank']} on {worker['host']}" for worker in workers[:8])
    findings.append(Finding("workers", OK, f"{len(workers)} by {place.launcher}: rank {hosts}"))
    if place.note:
        findings.append(Finding("workers", checks.LOOK, place.note))
    if place.num_workers > 1:
        ports = sorted({int(worker["address"].rpartition(":")[2]) for worker in workers})
        findings.append(Finding("ports", OK, f"{ports[0]} to {ports[-1]}: all workers can connect to rank 0"))
    findings.append(Finding("workdir", OK, f"{workdir} is writable and shared by all workers"))
    findings += [*checks.versions(workers), checks.host_names(workers), *checks.gpus(workers)]
    return workers


def check_training(config: Any, plan: Any, workdir: Path, findings: list[Finding]) -> None:
    """Opens the data, builds the model and runs a few steps, as a training does; adds to `findings`."""
    import tensorflow as tf

    from tfdist.checkpoint import format as checkpoint_format
    from tfdist.cluster.devices import host_gpus
    from tfdist.tools import measure
    from tfdist.training import setup

    try:
        started = setup.build_run(config, workdir)
    except (ValueError, OSError) as error:
        findings.append(checks.from_error("data and model", error))
        return
    cluster, replicas = started.cluster, plan.num_replicas
    batch = config.data.batch_size
    findings.append(Finding("batch", OK, f"{batch} examples / {replicas} replica(s): {batch // replicas} per replica"))
    times = gather(cluster, lambda: time.time() % 1e6)
    findings.append(checks.clocks(times))
    rate = read_rate(started, flags.FLAGS.seconds, batch // plan.num_workers)
    rates = gather(cluster, lambda: rate)
    findings.append(checks.data(rates, batch // plan.num_workers))
    stored = checkpoint_format.num_bytes(started.variables)
    num_bytes = sum(array.numpy().nbytes for array in started.context.model.trainable_variables)
    # Of the smallest of this worker's GPUs.
    of_gpu = min((gpu.memory_mib for gpu in host_gpus.query()), default=0) * 2**20 if plan.gpus else 0
    free = of_gpu or measure.free_bytes() // (plan.worker_spec.local_size * plan.local_replicas)
    findings.append(checks.memory(stored, num_bytes, int(min(gather(cluster, lambda: free)))))
    findings.append(checks.disk(workdir, stored, config.checkpoint.keep))
    try:
        step_seconds = measure.step_seconds(started, _STEPS, communication=False)
    except (ValueError, tf.errors.OpError) as error:
        findings.append(checks.from_error("step", error))
        return
    # Without the measurements: of reading, and of steps.
    start_seconds = process_info.age() - flags.FLAGS.seconds - _STEPS * step_seconds
    seconds = measure.all_reduce_seconds(cluster, num_bytes) if replicas > 1 else 0.0
    findings.append(checks.communication(seconds, num_bytes, replicas, step_seconds))
    slowest = max(step_seconds + seconds, batch / plan.num_workers / min(rates))
    findings.append(duration(started, slowest, start_seconds))
    cluster.leave()


def duration(started: Any, step_seconds: float, start_seconds: float) -> Finding:
    """Estimates the time of the run and the number of its jobs, from the seconds of a step and of a start."""
    config, minutes = started.config, flags.FLAGS.job_minutes
    limit = config.cluster.time_limit_seconds if minutes is None else 60 * minutes
    left = min(slurm_job.end_time(os.environ) - time.time(), math.inf if limit is None else limit)
    every = config.evaluation.every
    periods = [every.steps, every.epochs and every.epochs * started.steps_per_epoch]
    times = sum(started.total_steps / period for period in periods if period)
    times = max(1, times + sum(epoch * started.steps_per_epoch <= started.total_steps for epoch in every.after or ()))
    evaluated = times * (started.feed.sizes.evaluation_examples or 0) / config.data.batch_size
    limit = left if math.isfinite(left) else None
    return checks.duration(step_seconds, started.total_steps, evaluated, start_seconds, limit)


def gather(cluster: Any, value: Callable[[], float]) -> list[float]:
    """Calls `value` on all workers at about the same time; returns the results in rank order."""
    cluster.barrier()
    return cluster.all_gather([float(value())])[:, 0].tolist()


def read_rate(started: Any, seconds: float, batch: int) -> float:
    """Measures the examples per second that this worker reads and prepares; the first step is not measured."""
    elements = started.feed.open_training(0, started.steps_per_epoch)
    next(elements)
    started_at, count = time.perf_counter(), 0
    while time.perf_counter() - started_at < seconds:
        next(elements)
        count += batch
    return count / (time.perf_counter() - started_at)


def report(findings: list[Finding], rank: int) -> int:
    """Prints the table on the chief, and the first BAD finding on other workers; returns the exit code."""
    bad = [finding for finding in findings if finding.verdict == BAD]
    if rank == 0:
        rows = [(f.check, f.verdict, f.finding) for f in findings]
        print(tables.text(("check", "", "finding"), rows))
        for finding in findings:
            if finding.advice:
                print(f"{finding.check}: {finding.advice}")
        print(f"BAD: {len(bad)} of {len(findings)} findings." if bad else "No problems found.")
    elif bad:
        print(f"tfdist: worker {rank}: {bad[0].check}: {bad[0].finding}", file=sys.stderr)
    return 1 if bad else 0


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    if not flags.FLAGS.gpu and flags.FLAGS["config"].value is None:
        sys.exit(run_without_config())  # TensorFlow is imported only if it can be.
    process_exit.run_and_exit(gpus.measure_all if flags.FLAGS.gpu else run_checks, saves=False)
