"""Finds the largest batch that fits into memory: `python -m tfdist batch_size --config=...`.

Doubles the per-replica batch until a training step no longer fits, then bisects. Each trial runs in its own processes,
over all replicas of this machine or of a Slurm allocation, so that running out of memory ends the trial only. The limit
is TensorFlow's memory on GPUs, and `--memory_mb` per worker on CPUs: by default 90 % of the free memory.
A batch that the model refuses at the start is doubled; no batch is larger than the number of examples.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import tensorflow_log
from tfdist.config.command_line import words
from tfdist.tools import batch_size_trial, child_runs, measure, tables
from tfdist.tools.pictures import measured, style
from tfdist.training import features

HEADER = ("batch_per_replica", "batch_size", "replicas", "result", "memory_mb_per_replica", "step_ms")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of the trial of one batch."""

    # FITS, OUT_OF_MEMORY, TOO_FEW or REFUSED of batch_size_trial.
    result: str
    # The largest per-replica batch for which there are examples.
    largest: int = sys.maxsize
    # Why the model refuses the batch.
    reason: str = ""


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_integer(
        "smallest",
        8,
        "Per-replica batch to start with; halved if it does not fit, doubled if the model refuses it.",
        lower_bound=1,
    )
    flags.DEFINE_integer("largest", 1 << 20, "Largest per-replica batch to try.", lower_bound=1)
    flags.DEFINE_integer("multiple_of", 1, "The result is a multiple of this.", lower_bound=1)
    flags.DEFINE_bool("powers_of_two", False, "The result is a power of two.")
    flags.DEFINE_enum(
        "by", "auto", ["auto", "devices", "slurm"], "Replicas: all devices of this machine, or a Slurm step."
    )
    flags.DEFINE_float("memory_mb", None, "On CPUs: memory limit of a worker, in MiB.", lower_bound=1.0)
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-batch_size for NAME.py.")
    flags.DEFINE_integer("trial", None, "Internal: the per-replica batch of one trial.")


def search(
    attempt: Callable[[int], Trial], *, smallest: int, largest: int, multiple_of: int = 1, powers_of_two: bool = False
) -> int | None:
    """Returns the largest per-replica batch up to `largest` that fits, or None if none does.

    Args:
        attempt: tries a batch. Called at most once for a batch. Must be monotonic.
        smallest: the first batch, rounded up; doubled while the model refuses it (the result is then a multiple of the
            first that is not refused), halved until one fits, doubled until one does not.
        powers_of_two: the result is a power of two; `multiple_of` must be one too.

    Raises:
        ValueError: the model refuses all batches.
    """
    unit, ceiling, good, bad = multiple_of, largest, 0, None
    most = _power_up_to(largest) if powers_of_two else largest // unit * unit
    batch: int | None = -(-smallest // unit) * unit
    batch = min(_power_up_to(2 * batch - 1) if powers_of_two else batch, most)
    if batch < unit:
        return None
    refused = ""
    while batch is not None:
        trial = attempt(batch)
        ceiling = min(ceiling, trial.largest)
        if trial.result == batch_size_trial.REFUSED and not good and bad is None:
            if trial.reason == refused or 2 * batch > ceiling:
                raise ValueError(trial.reason)
            refused, unit, batch = trial.reason, 2 * batch, 2 * batch
        elif trial.result == batch_size_trial.REFUSED and not good:  # Smaller ones are refused too.
            break
        elif trial.result == batch_size_trial.TOO_FEW and not good:
            batch = _power_up_to(ceiling // unit) * unit or None
        elif trial.result == batch_size_trial.REFUSED:  # Not too large: no multiple of what the model needs.
            while batch % unit == 0:
                unit *= 2
            following = _next_batch(good, bad, ceiling, unit, powers_of_two)
            bad = batch if following == batch else bad
            batch = _next_batch(good, bad, ceiling, unit, powers_of_two)
        else:
            good, bad = (batch, bad) if trial.result == batch_size_trial.FITS else (good, batch)
            batch = _next_batch(good, bad, ceiling, unit, powers_of_two)
    return good or None


def _next_batch(good: int, bad: int | None, ceiling: int, unit: int, powers_of_two: bool) -> int | None:
    """Returns the next batch to try, None if there is none.

    Args:
        good: the largest that fits; 0: none so far.
        bad: the smallest that does not; None: none so far.
    """
    if bad is None:
        following = 2 * good if powers_of_two else min(2 * good, ceiling // unit * unit)
        return following if good < following <= ceiling else None
    following = (bad if good == 0 else 0 if powers_of_two else good + bad) // (2 * unit) * unit
    if good == 0:
        return max(following, unit) if bad > unit else None
    return following if following > good else None


def _power_up_to(number: int) -> int:
    """Returns the largest power of two up to `number`; 0 for 0."""
    return 1 << number.bit_length() >> 1


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

    def attempt(self, batch: int) -> Trial:
        """Runs a few steps with this batch, and adds a row; raises ValueError, with the end of the log, if it fails."""
        folder = self.workdir / f"batch-{batch}"
        flags_of_trial = [f"--trial={batch}", f"--workdir={folder}"]
        if self.memory_mb is not None:
            flags_of_trial.append(f"--memory_mb={self.memory_mb}")
        command = [sys.executable, "-m", "tfdist", "batch_size", *self.arguments, *flags_of_trial]
        if self.backend == "slurm":
            command = ["srun", "--kill-on-bad-exit=0", *command]
        log = folder.with_suffix(".log")
        code = child_runs.run_command(command, log, fresh=folder)
        found = batch_size_trial.combine(folder, code)
        if found is None:
            raise ValueError(
                f"The trial of batch {batch} exited with code {code}; the end of {log}:\n{child_runs.end_of(log)}"
            )
        replicas = found.get("replicas")
        row = (batch, replicas and batch * replicas, replicas, found["result"], found.get("memory_mb"))
        self.rows.append((*row, found.get("step_ms")))
        reason = found.get("reason", "")
        print(f"batch {batch} per replica: {found['result']}{reason and f': {reason}'}", flush=True)
        largest = found["examples"] // replicas if "examples" in found else sys.maxsize
        return Trial(result=found["result"], largest=largest, reason=reason)


def find(argv: list[str]) -> None:
    """Runs the search, prints and writes its table, and draws it."""
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-batch_size").expanduser()
    if flags.FLAGS.powers_of_two and flags.FLAGS.multiple_of.bit_count() > 1:
        raise ValueError(f"--multiple_of={flags.FLAGS.multiple_of} is no power of two, but --powers_of_two is set.")
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    features.check(flags.FLAGS["config"].value)
    runner = TrialRunner(
        arguments=words.config_arguments(argv[1:]), backend=backend, workdir=workdir, memory_mb=flags.FLAGS.memory_mb
    )
    names = ("smallest", "largest", "multiple_of", "powers_of_two")
    best = search(runner.attempt, **{name: flags.FLAGS[name].value for name in names})
    rows = sorted(runner.rows)
    if not rows:
        raise ValueError(f"--largest={flags.FLAGS.largest} is less than --multiple_of={flags.FLAGS.multiple_of}.")
    print(tables.text(HEADER, rows))
    tables.write_csv(workdir / "batch_size.csv", HEADER, rows)
    caption = f"{config_flags.config_name()}, {measure.machine()}"
    draw = functools.partial(measured.draw_batches, rows, best, fits=batch_size_trial.FITS, caption=caption)
    print(style.save(workdir / "batch_size", draw))
    if best is None:
        raise ValueError(f"A per-replica batch of {rows[0][0]} does not fit. Use a smaller model.")
    replicas = next(row[2] for row in rows if row[0] == best)
    print(
        f"The largest batch that fits: {best} per replica, {best * replicas} over {replicas} replica(s): "
        f"--config.data.batch_size={best * replicas}"
    )
    if all(row[3] != batch_size_trial.OUT_OF_MEMORY for row in rows):
        most = flags.FLAGS.largest
        following = best + (best if flags.FLAGS.powers_of_two else flags.FLAGS.multiple_of)
        end = f"--largest={most}" if following > most else "the number of examples"
        print(f"Memory was not the limit: {end} ended the search.")


def main(argv: list[str]) -> None:
    """Runs the search or one trial."""
    if flags.FLAGS.trial is not None:
        config, folder = flags.FLAGS["config"].value, Path(flags.FLAGS.workdir)
        arguments = config, flags.FLAGS.trial, folder, flags.FLAGS.memory_mb
        process_exit.run_and_exit(functools.partial(batch_size_trial.run_trial, *arguments), saves=False)
    tensorflow_log.announce()
    find(sys.argv)
