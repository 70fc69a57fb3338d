"""Finds the largest batch that fits into memory: `python -m tfdist batch_size --config=...`.

Doubles the batch of a replica until a training step no longer fits, then halves the interval. Each trial runs in
processes of its own, over all replicas of this machine, or of a Slurm allocation: running out of memory harms nothing.
On GPUs the limit is what TensorFlow gets; on CPUs `--memory_mb` for each worker, by default nine tenths of what is
free.
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
from tfdist.tools import batch_size_trial, child_runs, tables

HEADER = ("batch_a_replica", "batch_size", "replicas", "result", "memory_mb_a_replica", "step_ms")


def define_flags() -> None:
    """Defines the flags; not at import, for each command has flags of the same names."""
    config_flags.define_config()
    flags.DEFINE_integer("smallest", 8, "Batch of a replica to begin with; halved if need be.", lower_bound=1)
    flags.DEFINE_integer("largest", 1 << 20, "Batch of a replica to end with.", lower_bound=1)
    flags.DEFINE_integer("multiple_of", 1, "The answer is a multiple of this.", lower_bound=1)
    flags.DEFINE_enum("by", "auto", ["auto", "devices", "slurm"], "All devices of this machine, or a Slurm step.")
    flags.DEFINE_float("memory_mb", None, "On CPUs: what a worker may take, in MiB.", lower_bound=1.0)
    flags.DEFINE_string("workdir", None, "Where results go. Default: runs/NAME-batch_size for NAME.py.")
    flags.DEFINE_integer("trial", None, "Used by the command itself: the batch of a replica to try.")


def search(fits: Callable[[int], bool], *, smallest: int, largest: int, multiple_of: int = 1) -> int | None:
    """Returns the largest multiple of `multiple_of` up to `largest` that fits, or None where none does.

    Args:
        fits: whether a batch fits; what is larger than one that does not, does not either. Called once a number.
        smallest: where to begin, rounded up to a multiple; halved while it does not fit, doubled while it does.
        largest: where to end.
        multiple_of: in steps of this.
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
    """Runs trials, and keeps what they have shown."""

    arguments: list[str]
    way: str
    workdir: Path
    # On CPUs what a worker may take, in MiB.
    memory_mb: float | None = None
    rows: list[tuple] = dataclasses.field(default_factory=list)

    def fits(self, batch: int) -> bool:
        """Whether a step with this batch on each replica fits; adds a row to the table.

        Raises:
            ValueError: the trial failed of something else than memory.
        """
        folder = self.workdir / f"batch-{batch}"
        batch_size_trial.clear(folder)
        own = [f"--trial={batch}", f"--workdir={folder}"]
        if self.memory_mb is not None:
            own.append(f"--memory_mb={self.memory_mb}")
        command = [sys.executable, "-m", "tfdist", "batch_size", *self.arguments, *own]
        if self.way == "slurm":
            command = ["srun", "--kill-on-bad-exit=0", *command]
        log = folder.with_suffix(".log")
        code = child_runs.run(command, log)
        found = batch_size_trial.combine(folder, code)
        if found is None:
            end = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])
            raise ValueError(f"The trial of batch {batch} ended with exit code {code}; the end of {log}:\n{end}")
        replicas = found.get("replicas")
        row = (batch, replicas and batch * replicas, replicas, found["result"], found.get("memory_mb"))
        self.rows.append((*row, found.get("step_ms")))
        print(f"batch {batch} a replica: {found['result']}", flush=True)
        return found["result"] == batch_size_trial.FITS


def find(argv: list[str]) -> None:
    """Runs the search, and writes its table."""
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-batch_size").expanduser()
    workdir.mkdir(parents=True, exist_ok=True)
    way = child_runs.choose_way(flags.FLAGS.by, os.environ)
    validate.validate(flags.FLAGS["config"].value)
    bench = TrialRunner(
        arguments=config_flags.config_arguments(argv), way=way, workdir=workdir, memory_mb=flags.FLAGS.memory_mb
    )
    best = search(
        bench.fits, smallest=flags.FLAGS.smallest, largest=flags.FLAGS.largest, multiple_of=flags.FLAGS.multiple_of
    )
    rows = sorted(bench.rows)
    print(tables.text(HEADER, rows))
    tables.write_csv(workdir / "batch_size.csv", HEADER, rows)
    if best is None:
        raise ValueError(f"Not even a batch of {flags.FLAGS.multiple_of} fits: take a smaller model.")
    replicas = next(row[2] for row in rows if row[0] == best)
    print(
        f"The largest batch that fits: {best} a replica, {best * replicas} over {replicas} replica(s): "
        f"--config.data.batch_size={best * replicas}"
    )


def main(argv: list[str]) -> int:
    """Runs the search, or one trial of it; a mistake ends it with one message."""
    if flags.FLAGS.trial is not None:
        config, folder = flags.FLAGS["config"].value, Path(flags.FLAGS.workdir)
        process_exit.run_and_exit(
            lambda: batch_size_trial.run_trial(config, flags.FLAGS.trial, folder, flags.FLAGS.memory_mb)
        )
    with config_flags.one_message("tfdist batch_size"):
        find(sys.argv)
    return 0
