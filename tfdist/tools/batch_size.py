"""Finds the largest batch that fits into memory: `python -m tfdist batch_size --config=...`.

Doubles the batch of a replica, starting with the config's batch size, until a training step no longer fits, or the data
has fewer examples. Each trial runs in a process of its own, over all devices of this machine, so that running out of
memory ends only the trial. The limit is the memory of the GPUs, and on CPUs `--memory_mb`, by default 90 % of the free
memory.
"""

import argparse
import functools
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import tensorflow_log, tool_flags
from tfdist.launch import local_workers
from tfdist.report import files
from tfdist.tools import child_runs, measure, tables
from tfdist.training import features

HEADER = ("batch_per_replica", "batch_size", "replicas", "result", "memory_mb_per_replica", "step_ms")
FITS, OUT_OF_MEMORY, TOO_FEW = "fits", "out of memory", "larger than the data set"
# Exit code of a trial that exceeded its limit: that of a process killed by the kernel (128 + SIGKILL).
_EXIT_OUT_OF_MEMORY = 137
# In the folder of a trial.
_RESULT = "result.json"
_POLL_SECONDS = 0.01
# Fraction of the free memory that a trial may use.
_FREE_FRACTION = 0.9
_STEPS = 2


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags; --trial, the per-replica batch of one trial, is for child processes."""
    parser.add_config()
    meaning = "On CPUs: memory limit of a trial, in MiB."
    parser.add_argument("--memory_mb", metavar="MB", type=tool_flags.at_least(1, float), help=meaning)
    parser.add_workdir("runs/NAME-batch_size")
    parser.add_argument("--trial", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> None:
    """Runs the search or one trial."""
    if args.trial is not None:
        arguments = args.config, args.trial, args.workdir, args.memory_mb
        process_exit.run_and_exit(functools.partial(run_trial, *arguments), saves=False)
    tensorflow_log.announce()
    features.validate_config(args.config)
    words = args.config_words + ([f"--memory_mb={args.memory_mb}"] if args.memory_mb else [])
    local_workers.check_single_process(os.environ)
    find(words, args.workdir, args.config.data.batch_size)


def find(arguments: Sequence[str], workdir: Path, smallest: int) -> None:
    """Runs the trials, and prints and writes their table.

    Args:
        arguments: the flags of each trial.
        workdir: of the results.
        smallest: the first per-replica batch.

    Raises ValueError if a trial fails for a reason other than memory, or the smallest batch does not fit into memory or
    is larger than the data set.
    """
    rows, batch, result = [], smallest, FITS
    while result == FITS:
        found = attempt(arguments, batch, workdir / f"batch-{batch}")
        result, replicas = found["result"], found.get("replicas")
        row = (batch, replicas and batch * replicas, replicas, result, found.get("memory_mb"), found.get("step_ms"))
        rows.append(row)
        print(f"batch {batch} per replica: {result}", flush=True)
        batch *= 2
    print(tables.text(HEADER, rows))
    tables.write_csv(workdir / "batch_size.csv", HEADER, rows)
    print(workdir / "batch_size.csv")
    if len(rows) == 1:
        raise ValueError(
            f"A batch of {smallest} on a replica: {result}. Start with a smaller --config.data.batch_size."
        )
    best, size, replicas = rows[-2][:3]
    print(
        f"The largest batch that fits: {best} per replica, {size} over {replicas} replica(s): "
        f"--config.data.batch_size={size}"
    )
    if result == TOO_FEW:
        print("Memory was not the limit: the number of examples ended the search.")


def attempt(arguments: Sequence[str], batch: int, folder: Path) -> dict[str, Any]:
    """Runs a few steps with this batch in another process; returns its result, as `result_of`.

    Raises ValueError, with the end of the log, if it fails for a reason other than memory.
    """
    command = [sys.executable, "-m", "tfdist", "batch_size", *arguments, f"--trial={batch}", f"--workdir={folder}"]
    log = folder.with_suffix(".log")
    code = child_runs.run_command(command, log, fresh=folder)
    found = result_of(folder, code)
    if found is None:
        text = f"The trial of batch {batch} exited with code {code}; the end of {log}:\n{child_runs.end_of(log)}"
        raise ValueError(text)
    return found


def result_of(folder: Path, code: int) -> dict[str, Any] | None:
    """Returns {"result": FITS, TOO_FEW, ...} of a trial with this exit code; None: it failed for another reason."""
    killed = {"result": OUT_OF_MEMORY} if code in (-9, _EXIT_OUT_OF_MEMORY) else None  # By the kernel.
    found = files.read_json(folder / _RESULT)
    return killed if found is None or (code and found["result"] == FITS) else found


def run_trial(config: config_lib.Config, batch: int, folder: Path, memory_mb: float | None) -> int:
    """Runs a few steps with `batch` examples per replica; returns the exit code.

    Args:
        config: of the run; this function changes its batch size and removes evaluations and callbacks.
        folder: gets a file with the result, for `result_of`.
        memory_mb: limit on CPUs, in MiB; None: 90 % of the free memory.

    Raises:
        ValueError: the data cannot be opened, the model refuses the batch, or a step fails.
    """
    import tensorflow as tf

    from tfdist.cluster import strategy
    from tfdist.data import inputs as inputs_lib
    from tfdist.training import setup

    plan = strategy.plan(config.cluster, communication=config.communication)
    replicas = plan.num_replicas

    def write(result: str, **measured: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / _RESULT, {"replicas": replicas, "result": result, **measured})

    config.data.batch_size = batch * replicas
    config.data.evaluation_split = config.checkpoint.best_metric = None
    config.callbacks = []  # They may need an evaluation.
    config.train.epochs, config.train.steps, config.learning_rate.warmup_epochs = None, _STEPS + 1, 0.0
    if not plan.gpus:
        limit = memory_mb * 2**20 if memory_mb else _FREE_FRACTION * measure.free_bytes()
        threading.Thread(target=_end_above, args=(limit, write), daemon=True).start()
    try:
        if batch * replicas > len(inputs_lib.open_source(config, config.data.train_split)):
            write(TOO_FEW)
            return 0
        run = setup.build_run(config, folder / "run")
        seconds = measure.step_seconds(run, _STEPS)
    except (tf.errors.OpError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or is_out_of_memory(error)):
            raise
        write(OUT_OF_MEMORY)
        return _EXIT_OUT_OF_MEMORY
    peak = measure.peak_bytes(plan.local_replicas, on_gpus=bool(plan.gpus))
    write(FITS, memory_mb=round(peak / 2**20, 1), step_ms=round(1e3 * seconds, 2))
    run.cluster.leave()
    return 0


def is_out_of_memory(error: Any) -> bool:
    """Returns True if a `tf.errors.OpError` means that a device is out of memory."""
    import tensorflow as tf

    # CUDA's libraries report it in their own words and with other error codes.
    words = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED", "OOM when allocating")
    return isinstance(error, tf.errors.ResourceExhaustedError) or any(word in str(error) for word in words)


def _end_above(limit: float, write: Any) -> None:
    """Ends this process, and says why, once its resident memory exceeds `limit` bytes."""
    process = psutil.Process()
    while process.memory_info().rss <= limit:
        time.sleep(_POLL_SECONDS)
    write(OUT_OF_MEMORY)
    os._exit(_EXIT_OUT_OF_MEMORY)
