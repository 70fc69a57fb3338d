"""Where the time of a start goes: `python -m tests.benchmark.start_phases --config=FILE [fields]`.

The command starts tfdist.main with the given flags in a new workdir, for one step, on one worker and on two of this
machine. It prints the seconds of each phase of the chief up to the end of the first execution, in the median of three
starts: elapsed, and of the processor, over all threads.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil

from tfdist.config import patching
from tfdist.launch import local_workers
from tfdist.tools import tables

ROUNDS = 3
PHASES = (
    *("interpreter, flags", "TensorFlow", "other imports", "data", "meeting", "model"),
    *("restore, checks", "trace", "first execution"),
)
_MARK = "start phases: "


def main() -> None:
    """Starts the runs and prints the table."""
    header, columns = ["phase"], []
    for workers in (1, 2):
        found = [measure(workers, sys.argv[1:]) for _ in range(ROUNDS)]
        for place, unit in enumerate(("s", "CPU s")):
            header.append(f"{workers} worker{'s' * (workers > 1)}, {unit}")
            columns.append([statistics.median(one[phase][place] for one in found) for phase in PHASES])
    rows = [(phase, *(round(column[place], 2) for column in columns)) for place, phase in enumerate(PHASES)]
    print(tables.text(header, [*rows, ("sum", *(round(sum(column), 2) for column in columns))]))


def measure(workers: int, words: list[str]) -> dict[str, tuple[float, float]]:
    """Returns phase -> (seconds, seconds of the processor) of the chief of one start."""
    once = ["--config.train.epochs=none", "--config.train.steps=1", "--config.checkpoint.export=false"]
    sockets = local_workers.reserve_ports(workers)
    addresses = [f"localhost:{reserved.getsockname()[1]}" for reserved in sockets]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "worker", f"--workdir={folder}/run", *words, *once]
        running = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for env in local_workers.environments(os.environ, addresses, [()] * workers)
        ]
        outputs = [one.communicate()[0] for one in running]
    for reserved in sockets:
        reserved.close()
    if any(one.returncode for one in running):
        sys.exit(f"A start failed:\n{outputs[0][-3000:]}")
    line = next(line for line in outputs[0].splitlines() if line.startswith(_MARK))
    return {name: tuple(values) for name, values in json.loads(line.removeprefix(_MARK)).items()}


class Clock:
    """The time of each phase: elapsed, and of the processor."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}
        self.last = (time.monotonic() - (time.time() - psutil.Process().create_time()), 0.0)

    def mark(self, phase: str) -> None:
        """Counts the time since the last mark to `phase`."""
        now = (time.monotonic(), time.process_time())
        self.found[phase] = (now[0] - self.last[0], now[1] - self.last[1])
        self.last = now

    def around(self, before: str, during: str) -> Callable[..., Any]:
        """Returns a replacement of a function: the time until its call belongs to `before`, the call to `during`."""

        def call(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
            self.mark(before)
            result = original(*args, **keywords)
            self.mark(during)
            return result

        return call


def worker() -> None:
    """Runs tfdist.main, and prints the phases of its start."""
    clock = Clock()
    from absl import app

    from tfdist import main as command
    from tfdist.cluster import process_exit

    def with_imports(original: Callable[..., Any], *args: Any) -> int:
        """Imports what a run imports, and marks the phases of the modules."""
        from tfdist.training import execution, setup

        clock.mark("other imports")
        patches = [
            patching.patch(setup, "connect", clock.around("data", "meeting")),
            patching.patch(setup, "build_model", clock.around("feed", "model")),
            patching.patch(execution.StepRunner, "execute", first_execution),
        ]
        for one in patches:
            one.__enter__()
        return original(*args)

    def first_execution(original: Callable[..., Any], runner: Any, *args: Any, **keywords: Any) -> Any:
        """Traces before the call."""
        if "trace" in clock.found:
            return original(runner, *args, **keywords)
        clock.mark("restore, checks")
        run_steps = runner.run_steps

        def traced(*arguments: Any) -> Any:
            run_steps.__wrapped__.get_concrete_function(*arguments)
            clock.mark("trace")
            return run_steps(*arguments)

        runner.run_steps = traced
        result = original(runner, *args, **keywords)
        runner.run_steps = run_steps
        clock.mark("first execution")
        feed = clock.found.pop("feed")
        clock.found["data"] = tuple(a + b for a, b in zip(clock.found["data"], feed, strict=True))
        print(_MARK + json.dumps(clock.found), flush=True)
        return result

    sys.argv[1:] = sys.argv[2:]
    imported = clock.around("interpreter, flags", "TensorFlow")
    with (
        patching.patch(process_exit, "import_tensorflow_quietly", imported),
        patching.patch(command, "train_or_evaluate", with_imports),
    ):
        app.run(command.main, flags_parser=command.parse)


if __name__ == "__main__":
    worker() if sys.argv[1:2] == ["worker"] else main()
