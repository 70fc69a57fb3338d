"""Plants faults in one of four replicas and counts which ones audits find: `python -m tests.benchmark.planted_faults`.

A small network trains in this process on four logical devices with an audit every 4 steps. 50 times it starts anew and
one fault is planted: 20 computations that are wrong from a step on (a bit of an input, a loss or a gradient is flipped
on one device each time), 20 flipped bits in one replica's memory (a weight, a slot of the optimizer, a moving
statistic), 10 computations that are wrong once, in an audited step. All must be found within one interval, and the
replica and the kind must be named. Then `--transient=100` computations are wrong once, in any step: the part that is
found should be 1/4. `--seed` chooses all of them.

`--cost=digits,mnist` measures instead the time of a step with and without audits, on two logical devices.
"""

import argparse
import collections
import dataclasses
import math
import pathlib
import random
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from docs import same_bits
from tests.support import faulty
from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import strategy
from tfdist.training import execution, setup
from tfdist.training.consistency import audit

EVERY, REPLICAS, NEVER = 4, 4, math.inf
# What may be hit -> its bits. Images have zeros; a small change of a number may vanish when it is rounded, in a
# moving average some steps later.
BITS = {"image": range(30, 31), "loss": range(12, 32), "gradient": range(12, 32)}
STATES = {"weights": range(32), "slots": range(12, 32), "statistics": range(12, 32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault: its kind, as `audit.Fault.kind`; what is hit, on which replica, and in which step first."""

    kind: str
    what: str
    replica: int
    step: int
    bit: int
    # Of a state: the place of the variable among all of its sort, and of the element.
    variable: float = 0.0
    element: float = 0.0


def draw_faults(seed: int, persistent: int, states: int, audited: int, transient: int) -> list[Fault]:
    """Returns faults of each kind."""
    draw = random.Random(seed)
    kinds = ["persistent"] * persistent + ["state"] * states + ["transient"] * (audited + transient)
    found = []
    for index, kind in enumerate(kinds):
        step, replica, chosen = draw.randint(1, 2 * EVERY), draw.randrange(REPLICAS), draw.choice([*BITS])
        if kind == "transient" and index < persistent + states + audited:
            step = EVERY * draw.randint(1, 2)
        more = {}
        if kind == "state":
            chosen = draw.choice([*STATES])
            more = {"variable": draw.random(), "element": draw.random()}
        bit = draw.choice((BITS | STATES)[chosen])
        found.append(Fault(kind=kind, what=chosen, replica=replica, step=step, bit=bit, **more))
    return found


class Trials:
    """A run on four devices that begins anew for each fault."""

    def __init__(self, workdir: pathlib.Path):
        config = runpy.run_path("tests/configs/audited.py")["get_config"]()
        config.consistency.audit.every, config.cluster.logical_devices = EVERY, REPLICAS
        config.train.steps = 1000
        self.run = setup.build_run(config, workdir)
        self.steps = execution.training_steps(self.run)
        self.variables = {name: checkpoint_format.tf_variable(one) for name, one in self.run.variables.items()}
        self.start = {name: one.numpy() for name, one in self.variables.items()}
        model, optimizer = self.run.context.model, self.run.context.optimizer
        slots = [one for one in optimizer.variables if one.shape.rank]
        sorts = {"weights": model.trainable_variables, "slots": slots, "statistics": self.run.context.statistics}
        self.sorts = {name: [checkpoint_format.tf_variable(one) for one in sort] for name, sort in sorts.items()}

    def find(self, fault: Fault | None) -> audit.AuditError | None:
        """Trains past the next audit after the fault; returns the error of the audit that finds it."""
        faulty.plant(place="", times=0)
        for name, variable in self.variables.items():
            variable.assign(self.start[name])
        batches, step = self.run.feed.open_training(0, 1000), 0
        last = EVERY * (1 + -(-fault.step // EVERY)) if fault else 3 * EVERY
        if fault and fault.kind != "state":
            times = NEVER if fault.kind == "persistent" else 1
            faulty.plant(place=fault.what, replica=fault.replica, step=fault.step, bit=fault.bit, times=times)
        while step < last:
            flips = fault and fault.kind == "state" and step < fault.step
            try:
                step += self.steps(batches, (fault.step if flips else last) - step).steps
            except audit.AuditError as error:
                return error
            if flips and step == fault.step:
                self._flip(fault)
        return None

    def _flip(self, fault: Fault) -> None:
        """Flips a bit of a variable in the memory of one device, between two steps."""
        sort = self.sorts[fault.what]
        variable = self.run.cluster.local_values(sort[int(fault.variable * len(sort))])[fault.replica]
        value = variable.numpy()
        bits = value.reshape(-1).view(np.uint32)
        bits[int(fault.element * bits.size)] ^= np.uint32(1 << fault.bit)
        variable.assign(value)


def names_fault(error: audit.AuditError, fault: Fault) -> bool:
    """Returns whether the error names exactly this replica and this kind."""
    lines = str(error).splitlines()[1:]
    words = {"persistent": "persistent fault", "transient": "transient fault", "state": "another state"}
    return len(lines) == 1 and f"replica {fault.replica})" in lines[0] and words[fault.kind] in lines[0]


def show_faults(flags: argparse.Namespace) -> int:
    """Plants the faults and prints the tables; returns 1 if one of the 50 is not found and named in time."""
    counts = (flags.persistent, flags.states, flags.audited, flags.transient)
    faults = draw_faults(flags.seed, *counts)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(pathlib.Path(folder))
        assert trials.find(None) is None
        table, certain = collections.defaultdict(lambda: [0, 0, 0, 0]), sum(counts[:3])
        for index, fault in enumerate(faults):
            error = trials.find(fault)
            in_time = error is not None and 0 <= error.step - fault.step <= EVERY
            right = in_time and names_fault(error, fault)
            group = f"{fault.kind}, in an audited step" if fault.kind == "transient" else fault.kind
            row = table[group if index < certain else "transient, in any step"]
            for place, value in enumerate((1, error is not None, in_time, right)):
                row[place] += value
            if index < certain and not right:
                print(fault, error, flush=True)
    print(f"every {EVERY} steps, {REPLICAS} replicas, --seed={flags.seed}")
    print("| fault | planted | found | within one interval | replica and kind named |\n| --- | --- | --- | --- | --- |")
    for name, row in table.items():
        print(f"| {name} |", " | ".join(map(str, row)), "|")
    return int(any(row[0] != row[3] for name, row in table.items() if name != "transient, in any step"))


def show_cost(flags: argparse.Namespace) -> int:
    """Prints the processor time of a step with audits beside that without, in rounds that alternate."""
    cluster = strategy.connect(c.ClusterOptions(gpus=0, logical_devices=2))
    intervals = (None, *flags.every)
    print("| network | without |", " | ".join(f"every {one} steps" for one in intervals[1:]), "|", flush=True)
    print("| --- |", " | ".join("---" for _ in intervals), "|", flush=True)
    for name in flags.cost:
        kinds = {one: make_audited_steps(name, one, cluster) for one in intervals}
        count = max(intervals[1:])
        times = {kind: [] for kind in kinds}
        for _ in range(flags.rounds):
            for kind, steps in kinds.items():
                times[kind].append(steps(count))
        usual, *others = (statistics.median(each) for each in times.values())
        more = (f"{100 * (one / usual - 1):+.1f} %" for one in others)
        print(f"| {name} | {1e3 * usual:.1f} ms |", " | ".join(more), "|", flush=True)
    return 0


def make_audited_steps(name: str, every: int | None, cluster) -> Callable[[int], float]:
    """Returns a function that makes some steps and returns the processor seconds of one."""
    config = same_bits.config(name, 2)
    config.consistency.audit.every = every
    run = setup.build_run(config, pathlib.Path(tempfile.mkdtemp()), cluster)
    runner = execution.training_steps(run)
    batches = run.feed.open_training(0, run.total_steps)
    runner(batches, 1)  # Compiles.

    def steps(count: int) -> float:
        runner.length.steps = count
        started = time.process_time()
        runner(batches, count)
        return (time.process_time() - started) / count

    return steps


def main() -> int:
    """Parses the flags and shows what they ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, count in (("persistent", 20), ("states", 20), ("audited", 10), ("transient", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", default=count, type=int)
    parser.add_argument("--cost", default=[], type=lambda text: text.split(","))
    parser.add_argument("--every", default=[10, 100], type=lambda text: [*map(int, text.split(","))])
    parser.add_argument("--rounds", default=5, type=int)
    flags = parser.parse_args()
    return show_cost(flags) if flags.cost else show_faults(flags)


if __name__ == "__main__":
    sys.exit(main())
