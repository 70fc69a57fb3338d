"""Trains steps of a finished run again, from its checkpoints, and hashes the states."""

import collections
import dataclasses
import zipfile
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from tfdist import config as config_lib
from tfdist.checkpoint import directory, restore
from tfdist.checkpoint import format as checkpoint_format
from tfdist.config import text as text_lib
from tfdist.tools.saved_runs.same_bits import inside_step
from tfdist.training import checkpointing, setup, state
from tfdist.training.consistency import hashing, start_checks
from tfdist.training.loop_tools import LoopTools, make_silent_tools
from tfdist.training.run import Run

# Variables that are named in a comparison.
_MAX_VARIABLES = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A run that was built again; made by `open_replay`."""

    run: Run
    tools: LoopTools
    # The directory of the checkpoints of the run that is replayed.
    checkpoints: Path
    # The values of all variables before the first step.
    initial: Mapping[str, np.ndarray]

    def restore(self, step: int) -> str:
        """Restores the state after `step`, of its checkpoint, or before the first step for 0; returns its hash.

        Raises ValueError if the checkpoint is damaged, or of another model or optimizer.
        """
        path = directory.step_path(self.checkpoints, step)
        if step == 0 and not path.is_dir():
            for name, array in self.initial.items():
                checkpoint_format.tf_variable(self.run.variables[name]).assign(array)
        else:
            restore.restore(self.run.cluster, checkpoint_format.verify(path), self.run.variables)
        return hash_state(self.tools)

    def train(self, step: int, stops: list[int]) -> Iterator[tuple[int, str, dict[str, float]]]:
        """Trains on from the state after `step`.

        Yields (step, hash of the state, totals since the stop before) for each of `stops`, in order.
        """
        batches = self.run.feed.open_training(step, self.run.total_steps)
        for stop in stops:
            totals: dict[str, float] = {}
            while step < stop:
                done = self.tools.train_steps(batches, stop - step)
                step, totals = step + done.steps, state.add_totals(totals, done.totals)
            yield stop, hash_state(self.tools), totals

    def missing_in_export(self, path: Path) -> list[str]:
        """Returns the weights of the model, as it is evaluated now, whose values are not in a file model.keras."""
        with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file, h5py.File(file) as weights:
            found: collections.Counter[bytes] = collections.Counter()
            weights.visititems(
                lambda _, one: found.update([one[()].tobytes()]) if isinstance(one, h5py.Dataset) else None
            )
        missing = []
        with self.run.evaluated_weights():
            for variable in self.run.context.model.weights:
                value = keras.ops.convert_to_numpy(variable).tobytes()
                if not found[value]:
                    missing.append(variable.path)
                found[value] -= 1
        return missing


def hash_state(tools: LoopTools) -> str:
    """Returns the hash of the present state, as metrics.jsonl has it."""
    return hashing.as_text(int(tools.consistency.hash_all().numpy()[0, 0]))


def hash_data(run: Run) -> dict[str, str]:
    """Returns the hashes of the data, as metrics.jsonl has them."""
    found = start_checks.hash_examples(run.feed.examples(start_checks.EXAMPLES))
    return {name: hashing.as_text(value) for name, value in found["common"].items()}


def open_replay(config: config_lib.Config, checkpoints: Path, scratch: Path) -> Replay:
    """Builds the run of a config again, with an empty directory as its workdir; raises as `setup.build_run`."""
    run = setup.build_run(config, scratch)
    return Replay(
        run=run,
        tools=make_silent_tools(run),
        checkpoints=checkpoints,
        initial=checkpoint_format.snapshot(run.variables),
    )


class Ended(Exception):
    """The other process has asked for the end."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Served:
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
        self.connection.send((place, self.state.step + done, hash_state(self.tools)))
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
        return {name: inside_step.hash_array(value) for name, value in self._snapshot().items()}

    def save(self, _: Any) -> None:
        """Saves a checkpoint in the scratch directory."""
        checkpointing.save(self.tools, self.state, scheduled=False)
        checkpointing.wait_until_saved(self.tools, self.state)

    def inside(self, _: Any) -> dict[str, Any]:
        """Makes the last step again, and returns the hashes of what it computed; see `inside_step.record`."""
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
        saved = checkpoint_format.verify(Path(path))
        return describe_arrays(self._snapshot(), dict(checkpoint_format.read(saved, list(saved.arrays))))

    def _snapshot(self) -> dict[str, np.ndarray]:
        return checkpoint_format.snapshot(self.tools.run.variables)

    def _assign(self, values: dict[str, np.ndarray]) -> None:
        for name, variable in self.tools.run.variables.items():
            checkpoint_format.tf_variable(variable).assign(values[name])


def describe_arrays(trained: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray]) -> str:
    """Returns which variables of a checkpoint, `saved`, differ from those that were trained again, and how."""
    names = [name for name in trained if name in saved and saved[name].tobytes() != trained[name].tobytes()]
    if not names:
        return "no variable differs"
    described = [f"{name} ({_elements(trained[name], saved[name])})" for name in names]
    return f"{len(names)} of {len(trained)} variables differ: {text_lib.list_names(described, _MAX_VARIABLES)}"


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
