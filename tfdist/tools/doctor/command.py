"""Checks the environment of a job within a minute: `srun python -m tfdist doctor --config=...`.

Start it like tfdist.main, alone or under any launcher, with the same flags. The chief prints a line for each check, and
what to do. Exit code 1: a line is BAD, and a training would fail or hang. Without a config, it looks at this machine
only: processor, versions, GPUs, launcher, disk. `doctor --gpu` measures the GPUs instead.
"""

import argparse
import dataclasses
import functools
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tfdist import config as config_lib
from tfdist import report as report_lib
from tfdist.cluster import process_exit
from tfdist.cluster.devices import machine, onednn
from tfdist.cluster.discovery import environment, slurm_job
from tfdist.config import tensorflow_log, tool_flags
from tfdist.report import files, lines
from tfdist.tools import tables
from tfdist.tools.doctor import gpus
from tfdist.training import features

OK, LOOK, BAD = "ok", "look", "BAD"
# Steps that are measured, and seconds for which reading is measured.
_STEPS, _READ_SECONDS = 3, 2.0
# In addition to checkpoint.keep: the best, and the one that is being written.
_MORE_CHECKPOINTS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    check: str
    verdict: str
    text: str
    advice: str = ""


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config(required=False)
    meaning = "Without a config: measure the GPUs by training steps in each precision."
    parser.add_argument("--gpu", action="store_true", help=meaning)
    parser.add_workdir("runs/NAME", "Workdir of the planned run.")


def main(args: argparse.Namespace) -> int:
    """Runs the checks, prints the table, and returns the exit code."""
    if args.gpu and args.config:
        raise ValueError("--gpu measures this machine: leave out the config, or --gpu.")
    if args.gpu:
        process_exit.run_and_exit(gpus.measure_all, saves=False)
    if args.config:
        checks = functools.partial(check_run, args.config, args.workdir)
        process_exit.run_and_exit(lambda: report(checks()), saves=False)
    tensorflow_log.announce()
    code = report([*look_at_machine(os.environ), disk(Path.cwd())])
    if not code and not environment.resolve_roughly(os.environ).rank:
        print("With a config it checks data, memory and time as well: tfdist doctor my_config.py")
    return code


def look_at_machine(env: Mapping[str, str]) -> list[Finding]:
    """Returns the lines about this machine, and about how this process was started."""
    flags = onednn.read_processor().flags
    known = " ".join(flag for flag in ("avx", "avx2", "avx512f", "amx_bf16") if flag in flags)
    cores = f"{psutil.cpu_count(logical=False) or os.cpu_count()} cores"
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    text = ", ".join(filter(None, [platform.machine(), cores, memory, known]))
    versions = software(flags, machine.package_versions())
    found = [Finding("machine", OK, text), versions]
    if versions.verdict == OK:  # TensorFlow can be imported.
        found.append(check_gpus(env))
    return [*found, launcher(env)]


def software(flags: Collection[str], versions: Mapping[str, str | None]) -> Finding:
    """Checks processor and versions; TensorFlow is not imported."""
    names = [f"{name} {each or 'of unknown version'}" for name, each in versions.items()]
    text = ", ".join([f"Python {platform.python_version()}", *names])
    problem = machine.why_unsupported(platform.machine(), flags, versions)
    return Finding("software", BAD, f"{text}: {problem}") if problem else Finding("software", OK, text)


def check_gpus(env: Mapping[str, str]) -> Finding:
    """Compares the GPUs of this machine with those that TensorFlow lists in this process."""
    from tfdist.cluster.devices import gpu_software

    try:
        listed = gpu_software.num_listed(env)
    except gpu_software.GpusNotFoundError as error:
        return from_error("GPUs", error)
    if not listed:
        return Finding("GPUs", OK, "none: the replicas run on the CPU")
    found, spec = gpu_software.describe(env), environment.resolve_roughly(env)
    text = f"{listed} x {gpus.describe(found)}"
    if notes := gpu_software.notes(found):
        return Finding("GPUs", LOOK, text, " ".join(notes))
    if spec.local_size > 1 and listed < spec.gpus_on_node:
        advice = (
            f"This task sees {listed} of the {spec.gpus_on_node} GPUs of its node, and NCCL uses NVLink only between "
            "GPUs that each task sees: request --gpus-per-node, or add --gpu-bind=none (docs/slurm.md)."
        )
        return Finding("GPUs", LOOK, text, advice)
    return Finding("GPUs", OK, text)


def launcher(env: Mapping[str, str]) -> Finding:
    """Describes how this process was started."""
    options = config_lib.ClusterOptions()
    try:
        spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    except ValueError as error:
        return from_error("workers", error)
    if spec.note:
        return Finding("workers", LOOK, spec.note)
    alone = "one, started without a launcher"
    return Finding("workers", OK, f"{spec.num_workers} by {spec.launcher}" if spec.num_workers > 1 else alone)


def check_run(config: config_lib.Config, workdir: Path) -> list[Finding]:
    """Starts as training does, opens the data, builds the model and runs a few steps; stops at the first error."""
    findings = look_at_machine(os.environ)
    if any(finding.verdict == BAD for finding in findings):
        return findings
    import tensorflow as tf

    from tfdist.checkpoint import format as checkpoint_format
    from tfdist.tools import measure
    from tfdist.training import setup

    try:
        features.validate_config(config)
        files.make_workdir(workdir)
        run = setup.build_run(config, workdir)
        cluster, batch = run.cluster, config.data.batch_size
        replicas, share = cluster.num_replicas, batch // cluster.num_workers
        devices = cluster.roster.short_lines(verbose=False)
        findings.append(Finding("config", OK, f"{devices[0]}; {batch // replicas} of {batch} examples per replica"))
        reads = gather(cluster, _read_rate(run, share))
        findings.append(data(reads, share))
        findings.append(disk(workdir, checkpoint_format.num_bytes(run.variables), config.checkpoint.keep))
        step = measure.step_seconds(run, _STEPS, communication=False)
        peak = measure.peak_bytes(replicas // cluster.num_workers, on_gpus=cluster.device_type == "GPU")
        mebibytes = max(gather(cluster, peak)) / 2**20
        text = f"training takes {mebibytes:,.0f} MiB per replica; tfdist batch_size finds the largest batch"
        findings.append(Finding("memory", OK, text))
        gradients = sum(array.numpy().nbytes for array in run.context.model.trainable_variables)
        summed = measure.all_reduce_seconds(cluster, gradients) if replicas > 1 else 0.0
    except (ValueError, OSError, tf.errors.OpError) as error:
        return [*findings, from_error("start", error)]
    findings.append(communication(summed, gradients, replicas, step))
    # The time of a start: without the measurements of reading and of steps.
    start_seconds = time.monotonic() - report_lib.began - _READ_SECONDS - _STEPS * step
    planned = config.cluster.time_limit_seconds
    limit = min(slurm_job.end_time(os.environ) - time.time(), math.inf if planned is None else planned)
    slowest = max(step + summed, share / min(reads))
    findings.append(duration(slowest, run.total_steps, start_seconds, limit))
    cluster.leave()
    return findings


def from_error(check: str, error: Exception) -> Finding:
    """The finding for an error, whose message says what to do."""
    return Finding(check, BAD, " ".join(str(error).split()))


def data(rates: Sequence[float], worker_batch: int) -> Finding:
    """Reports how fast the slowest worker reads and prepares examples, and how long it takes for those of a step.

    Args:
        rates: examples/s of each worker, in rank order.
        worker_batch: the examples of a worker in a step.
    """
    slowest = min(range(len(rates)), key=lambda rank: rates[rank])
    text = f"{rates[slowest]:,.0f} examples/s on the slowest worker (rank {slowest})"
    step = f"a step's {worker_batch} take {1e3 * worker_batch / max(rates[slowest], 1e-9):,.1f} ms"
    if len(rates) > 1 and rates[slowest] < 0.5 * max(rates):
        advice = "One slow node slows all: check its disk, or cache the examples (config.data.cache)."
        return Finding("data", LOOK, f"{text}, {max(rates):,.0f} on the fastest; {step}", advice)
    return Finding("data", OK, f"{text}; {step}")


def disk(folder: Path, checkpoint_bytes: int = 2**29, keep: int = 0) -> Finding:
    """Checks that `folder` can be written, and has space for `keep` + `_MORE_CHECKPOINTS` checkpoints."""
    free = shutil.disk_usage(folder).free
    needed = (keep + _MORE_CHECKPOINTS) * checkpoint_bytes
    text = f"{folder} has {free / 2**20:,.0f} MiB free, and the checkpoints of a run take {needed / 2**20:,.0f} MiB"
    if not os.access(folder, os.W_OK):
        return Finding("disk", LOOK, f"{folder} cannot be written", "Start where you can write, or give --workdir.")
    if needed > free:
        advice = "Free space, choose another --workdir, or lower config.checkpoint.keep."
        return Finding("disk", BAD if keep else LOOK, text, advice)
    return Finding("disk", OK, text)


def communication(seconds: float, num_bytes: int, replicas: int, step_seconds: float) -> Finding:
    """Compares the all-reduce of `num_bytes` of gradients with the rest of a step, both in seconds."""
    if replicas == 1:
        return Finding("all-reduce", OK, "one replica: no communication")
    rate = 8e-9 * 2 * (replicas - 1) / replicas * num_bytes / seconds
    text = f"{num_bytes / 2**20:.3g} MiB of gradients over {replicas} replicas: {1e3 * seconds:.3g} ms, "
    text += f"{rate:.3g} Gbit/s; the rest of a step {1e3 * step_seconds:.3g} ms"
    advice = (
        "More than half of a step: use larger batches, config.communication.dtype=bfloat16 (with NCCL float16), or a "
        "faster network."
    )
    return Finding("all-reduce", LOOK, text, advice) if seconds > step_seconds else Finding("all-reduce", OK, text)


def duration(step_seconds: float, steps: int, start_seconds: float, limit: float) -> Finding:
    """Estimates how long the run takes without its evaluations, and how many jobs it needs.

    Args:
        step_seconds: of a training step, with reading and communication.
        steps: of the run.
        start_seconds: from the start of a process to its first step.
        limit: time limit of a job in seconds; infinite: unknown.
    """
    seconds = steps * step_seconds
    text = f"{steps:,} steps of {1e3 * step_seconds:.3g} ms: about {lines.duration(seconds)} without evaluations"
    text += f", and {lines.duration(start_seconds)} for each start"
    if math.isinf(limit):
        return Finding("time", OK, text)
    job = lines.duration(limit)
    if limit <= start_seconds:
        return Finding("time", LOOK, text, f"A job of {job} ends before the first step: raise its time limit.")
    jobs = math.ceil(seconds / (limit - start_seconds))
    if jobs == 1:
        return Finding("time", OK, f"{text}: within one job of {job}")
    advice = (
        f"It resumes {jobs - 1} time(s): run the same command again, or set config.cluster.requeue (docs/slurm.md)."
    )
    return Finding("time", LOOK, f"{text}: {jobs} jobs of {job}", advice)


def gather(cluster: Any, value: float) -> list[float]:
    """Returns the values of all workers in rank order."""
    return cluster.all_gather([float(value)])[:, 0].tolist()


def _read_rate(run: Any, batch: int) -> float:
    """Measures the examples per second that this worker reads and prepares; the first step is not measured."""
    elements = run.feed.open_training(0, run.steps_per_epoch)
    next(elements)
    started_at, count = time.perf_counter(), 0
    while time.perf_counter() - started_at < _READ_SECONDS:
        next(elements)
        count += batch
    return count / (time.perf_counter() - started_at)


def report(findings: list[Finding]) -> int:
    """Prints the table on the chief, and the first BAD finding on other workers; returns the exit code."""
    rank = environment.resolve_roughly(os.environ).rank
    bad = [finding for finding in findings if finding.verdict == BAD]
    if rank == 0:
        print(tables.text(("check", "", "finding"), [(each.check, each.verdict, each.text) for each in findings]))
        for finding in findings:
            if finding.advice:
                print(f"{finding.check}: {finding.advice}")
        look = sum(finding.verdict == LOOK for finding in findings)
        good = f"No errors, {look} of {len(findings)} findings to look at." if look else "No problems found."
        print(f"BAD: {len(bad)} of {len(findings)} findings." if bad else good)
    elif bad:
        print(f"tfdist: worker {rank}: {bad[0].check}: {bad[0].text}", file=sys.stderr)
    return 1 if bad else 0
