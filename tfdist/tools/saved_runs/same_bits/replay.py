"""Trains steps of a finished run again, from its checkpoints, and hashes the states."""

import collections
import dataclasses
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import keras
import numpy as np

from tfdist import config as config_lib
from tfdist.checkpoint import directory, restore
from tfdist.checkpoint import format as checkpoint_format
from tfdist.training import setup, state
from tfdist.training.consistency import comparison, hashing, start_checks
from tfdist.training.loop_tools import LoopTools
from tfdist.training.opening import make_silent_tools
from tfdist.training.run import Run


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
        return hash_state(self.run)

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
            yield stop, hash_state(self.run), totals

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


def hash_state(run: Run) -> str:
    """Returns the hash of the present state, as metrics.jsonl has it."""
    return comparison.Comparison(cluster=run.cluster, variables=run.variables).check(step=0)


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
