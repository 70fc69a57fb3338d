"""Trains a run again from a checkpoint, one step after another, as another process asks: the process that does so.

The run resumes in a scratch directory by the loop that trained it, so evaluations, callbacks, saves and rollbacks
happen where they did. Before and after each step it sends the hash of the state, and waits for a command.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.cluster.devices import onednn
from tfdist.config import config_dict, tensorflow_log
from tfdist.config import text as text_lib
from tfdist.report import run_info

# The file in the scratch directory with what the process printed.
LOG = "log"
# Of Keras, what only writes or sends; and trackers. They change no state, and their files and servers are the run's.
_ONLY_WRITE = re.compile(
    r"keras\..*(BackupAndRestore|CSVLogger|ModelCheckpoint|RemoteMonitor|TensorBoard|ProgbarLogger)$"
    r"|tfdist\.tools\.many_runs\.trackers:"
)
# Variables that are named in a comparison.
_MOST_VARIABLES = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Which steps one process trains again."""

    # The number of steps that are done when it begins.
    first: int
    # The config, as JSON values.
    config: Mapping[str, Any]
    # The directory of the checkpoint to resume; None: the newest one in `scratch`, or a new run.
    checkpoint: Path | None
    # A directory for its files.
    scratch: Path
    # Where the modules are that the config names.
    modules: tuple[str, ...] = ()
    # The working directory; None: as here.
    directory: str | None = None
    # Threads in an op; 0: TensorFlow's default.
    threads: int = 0
    # Whether with oneDNN; None: as this machine chooses.
    onednn: bool | None = None
    # Replicas, which are devices of the process.
    replicas: int = 1


class Ended(Exception):
    """The other process has asked for the end."""


def serve(connection: Connection, task: Task) -> None:
    """Trains `task`, and answers commands; the body of the process. See `replayed.Replayed` for what is sent."""
    log = os.open(task.scratch / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    try:
        _prepare(task)
        with contextlib.suppress(Ended):
            _train(connection, task)
    except BaseException as error:  # An exit, too: the other process says what happened.
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(("failed", -1, f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's teardown may take seconds.


def _prepare(task: Task) -> None:
    """Makes this process one in which the run's steps have their bits, before TensorFlow is imported."""
    os.environ.pop("TFDIST_NOTIFY", None)
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # Two of these processes may share a GPU.
    if task.threads:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(task.threads)
    if task.onednn is not None:
        os.environ[onednn.VARIABLE] = str(int(task.onednn))
    sys.path[:0] = task.modules
    if task.directory is not None:
        os.chdir(task.directory)  # Paths in a config are relative to it.
    tensorflow_log.announce()
    onednn.choose(os.environ)
    if task.checkpoint is not None:
        target = task.scratch / "checkpoints" / task.checkpoint.name
        if not target.is_dir():
            shutil.copytree(task.checkpoint, target)


def _config(task: Task) -> Any:
    config = config_dict.from_saved(dict(task.config))
    config.callbacks = [one for one in config.callbacks if not _ONLY_WRITE.match(one["target"])]
    config.cluster = type(config.cluster)(logical_devices=task.replicas)
    config.report = type(config.report)(tensorboard=False, step_times=config.report.step_times)
    config.checkpoint.export = False
    config.train.shard_optimizer = False  # The bits are the same, and each process holds the whole state.
    return config


def _train(connection: Connection, task: Task) -> None:
    from tfdist.tools.saved_runs.same_bits import replay
    from tfdist.training import checkpointing, loop, setup
    from tfdist.training import run as run_lib
    from tfdist.training.consistency import hashing

    run = setup.build_run(_config(task), task.scratch)
    run = dataclasses.replace(run, log=run_lib.Log(console="nothing"))
    tools, state = checkpointing.open_run(run)
    try:
        facts = {f"data.{name}": one for name, one in replay.hash_data(run).items()}
        facts |= {f"code.{name}": one for name, one in run_info.code_hashes().items()}
        facts["function"] = hashing.HASH_NAMES[run.cluster.device_type]
        connection.send(("facts", state.step, facts))
        served = _Served(connection=connection, tools=tools, state=state, steps=tools.train_steps)
        tools.train_steps = served
        loop.train_loop(tools, state)
        served.pause("before")
        connection.send(("ended", state.step, ""))
    finally:
        checkpointing.close(tools)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Served:
    """Stands in for the runner of training steps: one step in each execution, and commands before and after it."""

    connection: Connection
    tools: Any
    state: Any
    # The run's own runner.
    steps: Any
    # The values of all variables before the last step.
    before: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # What `inside_step.record` found in the last step, by part and name.
    found: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def __call__(self, iterator: Any, max_steps: int, first: int = 0) -> Any:
        """Runs one step; as `execution.StepRunner`."""
        self.pause("before")
        self.before = self._snapshot()
        done = self.steps(iterator, 1, first)
        self.pause("after", 1)
        return done

    @property
    def length(self) -> Any:
        """As of the run's own runner."""
        return self.steps.length

    def pop_time_fractions(self) -> list[tuple[float, float, float]]:
        """As of the run's own runner."""
        return self.steps.pop_time_fractions()

    def pause(self, place: str, done: int = 0) -> None:
        """Sends the hash of the state "before" or "after" a step, and answers commands until one is "go"."""
        from tfdist.tools.saved_runs.same_bits import replay

        self.connection.send((place, self.state.step + done, replay.hash_state(self.tools)))
        while True:
            try:
                command, argument = self.connection.recv()
            except EOFError:
                raise Ended from None
            if command == "go":
                return
            self.connection.send(getattr(self, command)(argument))

    def variables(self, _: Any) -> dict[str, str]:
        """Returns a hash of each variable now."""
        from tfdist.tools.saved_runs.same_bits import inside_step

        return {name: inside_step.hash_array(value) for name, value in self._snapshot().items()}

    def save(self, _: Any) -> None:
        """Saves a checkpoint in the scratch directory."""
        from tfdist.training import checkpointing

        checkpointing.save(self.tools, self.state, scheduled=False)
        checkpointing.wait_until_saved(self.tools, self.state)

    def inside(self, _: Any) -> dict[str, Any]:
        """Makes the last step again, and returns the hashes of what it computed; see `inside_step.record`."""
        from tfdist.tools.saved_runs.same_bits import inside_step

        after = self._snapshot()
        self._assign(self.before)
        found, self.found = inside_step.record(self.tools.run, self.state.step)
        self._assign(after)
        return found

    def row(self, place: tuple[str, str, int]) -> np.ndarray:
        """Returns one example, (part, feature, place in the batch), that the last `inside` has found."""
        part, name, row = place
        return np.asarray(self.found[part][name][row])

    def compare(self, path: str) -> str:
        """Returns in words how the variables of a checkpoint differ from those now."""
        from tfdist.checkpoint import format as checkpoint_format

        saved = checkpoint_format.verify(Path(path))
        return describe_arrays(self._snapshot(), dict(checkpoint_format.read(saved, list(saved.arrays))))

    def _snapshot(self) -> dict[str, np.ndarray]:
        from tfdist.checkpoint import format as checkpoint_format

        run = self.tools.run
        return checkpoint_format.snapshot(run.variables) | run.replica_state.gather()

    def _assign(self, values: dict[str, np.ndarray]) -> None:
        from tfdist.checkpoint import format as checkpoint_format

        run = self.tools.run
        for name, variable in run.variables.items():
            checkpoint_format.tf_variable(variable).assign(values[name])
        run.replica_state.assign(values)


def describe_arrays(trained: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray]) -> str:
    """Returns which variables of a checkpoint, `saved`, differ from those that were trained again, and how."""
    names = [name for name in trained if name in saved and saved[name].tobytes() != trained[name].tobytes()]
    if not names:
        return "no variable differs"
    described = [f"{name} ({_elements(trained[name], saved[name])})" for name in names]
    return f"{len(names)} of {len(trained)} variables differ: {text_lib.list_names(described, _MOST_VARIABLES)}"


def _elements(trained: np.ndarray, saved: np.ndarray) -> str:
    if trained.shape != saved.shape or trained.dtype != saved.dtype:
        return f"{trained.dtype}{list(trained.shape)} and {saved.dtype}{list(saved.shape)}"
    size = trained.dtype.itemsize
    first, second = (np.ascontiguousarray(one).reshape(-1).view(np.uint8).reshape(-1, size) for one in (trained, saved))
    places = (first != second).any(axis=1).nonzero()[0]
    text = f"{len(places)} of {trained.size} elements"
    if len(places) == 1:
        bits = int(np.unpackbits(first[places[0]] ^ second[places[0]]).sum())
        at = [int(one) for one in np.unravel_index(places[0], trained.shape)]
        text = f"element {at}, {bits} bit{'s' * (bits > 1)} of {8 * size}"
    return text
