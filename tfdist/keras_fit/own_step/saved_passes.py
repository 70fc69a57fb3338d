"""What `tfdist.batches` saves in a workdir: all that the steps of a loop use, after each pass over the data.

A script that is started again skips the passes that are saved. After each of them it has the values of that pass, so
that what it does between two passes, such as an evaluation or a change of the learning rate, is what it did before.
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory as directory_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.checkpoint.format import Saved
from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import script_state

_numbers = itertools.count(1)


@dataclasses.dataclass
class Place:
    """The checkpoints of a workdir, and the passes that this process has begun with it."""

    directory: Path
    # Each `own_loop.Step` of the script, also later ones.
    steps: list[Any]
    # What earlier starts saved last; None: nothing.
    newest: Saved | None
    # The number of the checkpoint after each pass.
    ends: list[int]
    passes: int = -1
    # Whether a pass has begun that is not at its end.
    begun: bool = False
    # What was restored last, and the variables that got their values from it.
    saved: Saved | None = None
    restored: set[int] = dataclasses.field(default_factory=set)

    @classmethod
    def open(cls, cluster: Cluster, workdir: Path, steps: list[Any]) -> "Place":
        """Returns the place of a workdir, with what is saved there. Collective."""
        directory = workdir / "checkpoints"
        saved = restore.find(cluster, lambda: checkpoint_format.newest_valid(directory, messages.say))
        return cls(directory, steps, saved, [] if saved is None else [*saved.state["ends"]])

    def begin_pass(self, cluster: Cluster, structure: str, like: Callable[[], Any]) -> int:
        """Returns the first step to make in the next pass, and restores what the script had at this point. Collective.

        Args:
            structure: of the batches of the pass.
            like: makes such a batch, without its element.

        Raises:
            ValueError: the script has left the last pass before its end; or a checkpoint is damaged.
        """
        if self.begun:
            raise ValueError(
                f"The script has left pass {self.passes + 1} over the data before its end, and "
                f"tfdist.batches(workdir={str(self.directory.parent)!r}) saves at the end of a pass: let the data end, "
                "as by dataset.take(steps), or pass no workdir."
            )
        self.passes += 1
        self.begun = self.passes >= len(self.ends)
        if not self.begun:
            self._restore(cluster, self._at_end(cluster), structure, like)
            return sys.maxsize
        if self.newest is None or not self.newest.state["steps"] or self.passes != len(self.newest.state["ends"]):
            return 0
        self._restore(cluster, self.newest, structure, like)  # It was stopped in this pass.
        return self.newest.state["steps"]

    def _at_end(self, cluster: Cluster) -> Saved:
        """Returns the checkpoint after the pass."""
        number = self.ends[self.passes]
        if number == self.newest.step:
            return self.newest
        return restore.find(cluster, lambda: checkpoint_format.verify(directory_lib.step_path(self.directory, number)))

    def _restore(self, cluster: Cluster, saved: Saved, structure: str, like: Callable[[], Any]) -> None:
        """Gives the variables of all steps their saved values; makes those of steps that took such batches.

        A step that took others gets its values when it is called.
        """
        pairs = zip(self.steps, saved.state["made_for"], strict=False)
        later = [step for step, made_for in pairs if not step.made_for and made_for == structure]
        if later:
            batch = like()
            for step in later:
                step.make(cluster, batch)
        self.saved, self.restored = saved, set()
        for step in self.steps:
            self.restore_rest(cluster, step)

    def restore_rest(self, cluster: Cluster, step: Any) -> None:
        """Gives the variables of a step the values that were restored last, if they have not got them."""
        index = self.steps.index(step)
        prefix = f"step{index}/"
        if self.saved is None or not step.made_for or not any(name.startswith(prefix) for name in self.saved.arrays):
            return  # Not called before, or not yet.
        named = {f"{prefix}{name}": one for name, one in step.variables.items()}
        named = {name: one for name, one in named.items() if id(one) not in self.restored}
        missing = [name for name in named if name not in self.saved.arrays]
        if missing:
            raise ValueError(
                f"The checkpoints in {self.directory} are of another script: there is no {missing[0]}. Choose another "
                "workdir."
            )
        for name, array in restore.read(cluster, self.saved, named):
            checkpoint_format.tf_variable(named[name]).assign(array)
        self.restored |= {id(one) for one in named.values()}
        if metrics := self.saved.state["metrics"].get(str(index)):
            step.objective.restore_state(metrics)

    def save(self, cluster: Cluster, steps: int, *, finished: bool = False) -> None:
        """Saves the variables of all steps after `steps` of this pass, or at its end if `finished`. Collective.

        Raises:
            OSError: on the chief, it cannot be written.
        """
        with script_state.running(), cluster.monitor.pause_timers():
            made = {index: step for index, step in enumerate(self.steps) if step.made_for}
            metrics = {str(index): step.objective.state() for index, step in made.items()}
            number = next(_numbers) + (0 if self.newest is None else self.newest.step)
            self.ends += [number] if finished else []
            if cluster.is_chief:
                named = {f"step{index}/{name}": v for index, step in made.items() for name, v in step.variables.items()}
                made_for = [step.made_for for step in self.steps]
                state = {"steps": steps, "ends": self.ends, "metrics": metrics, "made_for": made_for}
                checkpoint_format.write(self.directory, number, checkpoint_format.snapshot(named), state)
            cluster.barrier()
        self.begun = self.begun and not finished
