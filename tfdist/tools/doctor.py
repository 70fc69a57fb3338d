"""Looks for what wastes hours, in a minute, before a job: `srun python -m tfdist doctor --config=...`.

Started as tfdist.main is, alone or under any launcher, with the same flags. The chief prints a table with one line a
finding, and what to do about it. Exit code 1: something is BAD, and a training would end or hang.
"""

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import validate
from tfdist.report import files
from tfdist.tools import doctor_checks, tables
from tfdist.tools.doctor_checks import BAD, OK, Finding

_STEPS = 3


def define_flags() -> None:
    """Defines the flags; not at import, for each command has flags of the same names."""
    config_flags.define_config()
    flags.DEFINE_string("workdir", None, "The workdir of the run to come. Default: runs/NAME for NAME.py.")
    flags.DEFINE_float("seconds", 2.0, "How long reading is measured.", lower_bound=0.1)


def run() -> int:
    """Looks at everything that can be looked at; returns the exit code."""
    from tfdist.cluster import strategy

    config = flags.FLAGS["config"].value
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    findings: list[Finding] = []
    rank = 0
    try:
        validate.validate(config)
        findings.append(Finding("config", OK, "types, ranges and names"))
        plan = strategy.plan(config.cluster)
        rank = plan.worker_spec.rank
    except ValueError as error:
        findings.append(doctor_checks.failed("config", error))
        return tell(findings, rank)
    workers = meet(plan, workdir, findings)
    if workers and all(finding.verdict != BAD for finding in findings):
        train(config, plan, workdir, findings)
    return tell(findings, rank)


def meet(plan: Any, workdir: Path, findings: list[Finding]) -> list[dict[str, Any]]:
    """All workers find each other, and compare what they say of themselves; returns that, or nothing on a failure."""
    import keras
    import tensorflow as tf

    from tfdist.cluster.discovery import worker_spec
    from tfdist.cluster.rendezvous import preflight
    from tfdist.launch import local_workers

    preflight.unset_proxies(os.environ)
    place = plan.worker_spec
    about = {
        "versions": {"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__},
        "gpus": len(plan.gpus),
        "on_host": len(plan.gpus) or len(local_workers.gpus(os.environ)),
        "unresolved": doctor_checks.unresolved(place.addresses),
        "devices": f"{plan.local_replicas} {plan.device_type}",
    }
    try:
        files.make_workdir(workdir)
        workers = preflight.rendezvous(
            place,
            must_match={},
            seconds=plan.options.connect_seconds,
            metadata=about,
            exclusive=worker_spec.held_gpus(place, plan.gpus),
            workdir=workdir,
        )
    except (ValueError, OSError) as error:
        findings.append(doctor_checks.failed("workers", error))
        return []
    told = ", ".join(f"{worker['rank']} on {worker['host']}" for worker in workers[:8])
    findings.append(Finding("workers", OK, f"{len(workers)} by {place.launcher}: rank {told}"))
    if place.note:
        findings.append(Finding("workers", doctor_checks.LOOK, place.note))
    if place.num_workers > 1:
        ports = sorted({int(worker["address"].rpartition(":")[2]) for worker in workers})
        findings.append(Finding("ports", OK, f"{ports[0]} to {ports[-1]}: all reach all"))
    findings.append(Finding("workdir", OK, f"{workdir} can be written, and all workers share it"))
    findings += [*doctor_checks.versions(workers), doctor_checks.names(workers), *doctor_checks.gpus(workers)]
    return workers


def train(config: Any, plan: Any, workdir: Path, findings: list[Finding]) -> None:
    """Opens the data, builds the model, and runs a few steps: what a training does first."""
    import tensorflow as tf

    from tfdist.checkpoint import format as checkpoint_format
    from tfdist.cluster import cluster as cluster_lib
    from tfdist.tools import measure
    from tfdist.training import setup

    try:
        started = setup.build_run(config, workdir)
    except (ValueError, OSError) as error:
        findings.append(doctor_checks.failed("data and model", error))
        return
    cluster, replicas = started.cluster, plan.num_replicas
    batch = config.data.batch_size
    findings.append(Finding("batch", OK, f"{batch} examples among {replicas} replica(s): {batch // replicas} each"))
    times = gather(cluster, lambda: time.time() % 1e6)
    findings.append(doctor_checks.clocks(times))
    rate = read_rate(started, flags.FLAGS.seconds, batch // plan.num_workers)
    findings.append(doctor_checks.data(gather(cluster, lambda: rate), batch // plan.num_workers))
    arrays = checkpoint_format.snapshot(started.variables)
    stored = sum(array.nbytes for array in arrays.values())
    num_bytes = sum(array.numpy().nbytes for array in started.trainer.model.trainable_variables)
    free = device_bytes(plan) or measure.free_bytes() // (plan.worker_spec.local_size * plan.local_replicas)
    findings.append(doctor_checks.memory(stored, num_bytes, int(min(gather(cluster, lambda: free)))))
    findings.append(doctor_checks.disk(workdir, stored, config.checkpoint.keep))
    try:
        bare = measure.step_seconds(started, _STEPS, communication=False)
    except (ValueError, tf.errors.OpError) as error:
        findings.append(doctor_checks.failed("step", error))
        return
    seconds = measure.measure(cluster, num_bytes) if replicas > 1 else 0.0
    findings.append(doctor_checks.communication(seconds, num_bytes, replicas, bare))
    cluster_lib.leave(cluster)


def gather(cluster: Any, value: Callable[[], float]) -> list[float]:
    """What every worker has for `value`, in rank order, read when all have come."""
    cluster.broadcast(0)
    return cluster.all_gather([float(value())])[:, 0].tolist()


def read_rate(started: Any, seconds: float, batch: int) -> float:
    """Examples per second that this worker reads and prepares, `batch` of them in a step; the first is not counted."""
    local_replicas = started.cluster.num_replicas // started.cluster.num_workers
    elements = iter(started.training_data(0, started.steps_per_epoch))
    for _ in range(local_replicas):
        next(elements)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(elements)
        count += batch // local_replicas
    return count / (time.perf_counter() - begun)


def device_bytes(plan: Any) -> int:
    """Memory of the smallest of this worker's GPUs; 0 on CPUs."""
    import subprocess

    if not plan.gpus:
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    return min((int(line) for line in done.stdout.split() if line.isdecimal()), default=0) * 2**20


def tell(findings: list[Finding], rank: int) -> int:
    """Prints the table on the chief, and on another worker what is BAD; returns the exit code."""
    bad = [finding for finding in findings if finding.verdict == BAD]
    if rank == 0:
        rows = [(f.check, f.verdict, f.finding) for f in findings]
        print(tables.text(("check", "", "finding"), rows))
        for finding in findings:
            if finding.advice:
                print(f"{finding.check}: {finding.advice}")
        print(f"BAD: {len(bad)} of {len(findings)} findings." if bad else "Nothing stands against this run.")
    elif bad:
        print(f"tfdist: worker {rank}: {bad[0].check}: {bad[0].finding}", file=sys.stderr)
    return 1 if bad else 0


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(run)
