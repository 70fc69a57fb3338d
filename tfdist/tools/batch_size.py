"""Finds the largest batch that fits into memory: `python -m tfdist batch_size --config=...`.

Doubles the per-replica batch until a training step no longer fits, then bisects. Each trial runs in its own processes,
over all replicas of this machine or of a Slurm allocation, so that running out of memory ends the trial only. The limit
is TensorFlow's memory on GPUs, and `--memory_mb` per worker on CPUs: by default 90 % of the free memory.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import validate
from tfdist.tools import batch_size_trial, child_runs, measure, tables
from tfdist.tools.pictures import measured, style

HEADER = ("batch_per_replica", "batch_size", "replicas", "result", "memory_mb_per_replica", "step_ms")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_integer("smallest", 8, "Per-replica batch to start with; halved if it does not fit.", lower_bound=1)
    flags.DEFINE_integer("largest", 1 << 20, "Largest per-replica batch to try.", lower_bound=1)
    flags.DEFINE_integer("multiple_of", 1, "The result is a multiple of this.", lower_bound=1)
    flags.DEFINE_enum(
        "by", "auto", ["auto", "devices", "slurm"], "Replicas: all devices of this machine, or a Slurm step."
    )
    flags.DEFINE_float("memory_mb", None, "On CPUs: memory limit of a worker, in MiB.", lower_bound=1.0)
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-batch_size for NAME.py.")
    flags.DEFINE_integer("trial", None, "Internal: the per-replica batch of one trial.")


def search(fits: Callable[[int], bool], *, smallest: int, largest: int, multiple_of: int = 1) -> int | None:
    """Returns the largest multiple of `multiple_of` up to `largest` that fits, or None if none does.

    Args:
        fits: returns True if a batch fits. Called at most once for a batch. Must be monotonic.
        smallest: the first batch, rounded up to a multiple; halved until one fits, doubled until one does not.
        largest: upper bound.
        multiple_of: the step of the search.
    """
    most = largest // multiple_of
    good, bad = 0, most + 1
    trial = min(max(1, -(-smallest // multiple_of)), most)
    while bad - good > 1:
        if fits(trial * multiple_of):
            good = trial
            trial = min(2 * good, most) if bad > most else (good + bad) // 2
        else:
            bad = trial
            trial = max(1, bad // 2) if good == 0 else (good + bad) // 2
    return good * multiple_of or None


@dataclasses.dataclass(slots=True, kw_only=True)
class TrialRunner:
    """Runs trials and collects their results."""

    arguments: list[str]
    # A result of `child_runs.choose_backend`.
    backend: str
    workdir: Path
    # On CPUs the memory limit of a worker, in MiB; None: see `batch_size_trial.run_trial`.
    memory_mb: float | None = None
    rows: list[tuple] = dataclasses.field(default_factory=list)

    def fits(self, batch: int) -> bool:
        """Returns True if a step with this per-replica batch fits; adds a row to the table.

        Raises:
            ValueError: the trial failed for another reason than memory; contains the end of its log.
        """
        folder = self.workdir / f"batch-{batch}"
        batch_size_trial.clear(folder)
        own = [f"--trial={batch}", f"--workdir={folder}"]
        if self.memory_mb is not None:
            own.append(f"--memory_mb={self.memory_mb}")
        command = [sys.executable, "-m", "tfdist", "batch_size", *self.arguments, *own]
        if self.backend == "slurm":
            command = ["srun", "--kill-on-bad-exit=0", *command]
        log = folder.with_suffix(".log")
        code = child_runs.run(command, log)
        found = batch_size_trial.combine(folder, code)
        if found is None:
            end = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])
            raise ValueError(f"The trial of batch {batch} exited with code {code}; the end of {log}:\n{end}")
        replicas = found.get("replicas")
        row = (batch, replicas and batch * replicas, replicas, found["result"], found.get("memory_mb"))
        self.rows.append((*row, found.get("step_ms")))
        print(f"batch {batch} per replica: {found['result']}", flush=True)
        return found["result"] == batch_size_trial.FITS


def find(argv: list[str]) -> None:
    """Runs the search, prints and writes its table, and draws it."""
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-batch_size").expanduser()
    workdir.mkdir(parents=True, exist_ok=True)
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    validate.validate(flags.FLAGS["config"].value)
    runner = TrialRunner(
        arguments=config_flags.config_arguments(argv), backend=backend, workdir=workdir, memory_mb=flags.FLAGS.memory_mb
    )
    best = search(
        runner.fits, smallest=flags.FLAGS.smallest, largest=flags.FLAGS.largest, multiple_of=flags.FLAGS.multiple_of
    )
    rows = sorted(runner.rows)
    print(tables.text(HEADER, rows))
    tables.write_csv(workdir / "batch_size.csv", HEADER, rows)
    caption = f"{config_flags.config_name()}, {measure.machine()}"
    print(
        style.save(
            workdir / "batch_size",
            lambda: measured.draw_batches(rows, best, fits=batch_size_trial.FITS, caption=caption),
        )
    )
    if best is None:
        raise ValueError(f"A per-replica batch of {flags.FLAGS.multiple_of} does not fit. Use a smaller model.")
    replicas = next(row[2] for row in rows if row[0] == best)
    print(
        f"The largest batch that fits: {best} per replica, {best * replicas} over {replicas} replica(s): "
        f"--config.data.batch_size={best * replicas}"
    )


def main(argv: list[str]) -> int:
    """Runs the search or one trial after the flags are parsed; an error of the user ends it with one message."""
    if flags.FLAGS.trial is not None:
        config, folder = flags.FLAGS["config"].value, Path(flags.FLAGS.workdir)
        process_exit.run_and_exit(
            lambda: batch_size_trial.run_trial(config, flags.FLAGS.trial, folder, flags.FLAGS.memory_mb)
        )
    with config_flags.one_message("tfdist batch_size"):
        find(sys.argv)
    return 0
