"""What `tfdist.batches` saves in a workdir: all that the steps of a loop use, after each pass over the data.

A script that is started again skips what was finished. After each pass that it skips it has the values of that pass, so
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
from tfdist.keras_fit.script import context

_numbers = itertools.count(1)


@dataclasses.dataclass
class Place:
    """The checkpoints of a workdir, and the passes that this process has begun with it."""

    directory: Path
    # Each `own_loop.Step` of the script, also later ones.
    steps: list[Any]
    # What earlier starts saved last; None: nothing.
    newest: Saved | None
    # The number of the checkpoint after each finished pass.
    ends: list[int]
    passes: int = -1
    # What was restored last, and the variables that got their values from it.
    saved: Saved | None = None
    restored: set[int] = dataclasses.field(default_factory=set)

    @classmethod
    def open(cls, cluster: Cluster, workdir: Path, steps: list[Any]) -> "Place":
        """Returns the place of a workdir, with what is saved there. Collective."""
        directory, saved = workdir / "checkpoints", None
        if cluster.is_chief:
            workdir.mkdir(parents=True, exist_ok=True)
            saved = checkpoint_format.newest_valid(directory, messages.say)
        saved = restore.broadcast_saved(cluster, saved)
        return cls(directory, steps, saved, [] if saved is None else saved.state.get("ends", []))

    def begin_pass(self, cluster: Cluster, structure: str, like: Callable[[], Any]) -> int:
        """Returns the first step to make in the next pass, and restores what the script had at this point. Collective.

        Args:
            structure: of the batches of the pass.
            like: makes such a batch, without its element.
        """
        self.passes += 1
        finished, steps = (0, 0) if self.newest is None else (self.newest.state["passes"], self.newest.state["steps"])
        if self.passes > finished or (self.passes == finished and not steps):
            return 0
        last = finished - (steps == 0)
        saved = self.newest if self.passes == last else self._after(cluster, self.passes)
        if saved is not None:
            self._restore(cluster, saved, structure, like)
        return steps if self.passes == finished else sys.maxsize

    def _after(self, cluster: Cluster, index: int) -> Saved | None:
        """Returns the checkpoint after a pass; None: there is no valid one, and a line says so."""
        saved = None
        if cluster.is_chief and index < len(self.ends):
            try:
                saved = checkpoint_format.verify(directory_lib.step_path(self.directory, self.ends[index]))
            except checkpoint_format.DamagedCheckpointError as error:
                messages.say(
                    f"Pass {index + 1} is finished, and its checkpoint is not valid: {error}. What the script does "
                    "after this pass, it does with other values than before."
                )
        return restore.broadcast_saved(cluster, saved)

    def _restore(self, cluster: Cluster, saved: Saved, structure: str, like: Callable[[], Any]) -> None:
        """Gives the variables of all steps their saved values; makes those of steps that took such batches."""
        pairs = list(zip(self.steps, saved.state.get("made_for", []), strict=False))
        later = [step for step, made_for in pairs if not step.made_for and made_for == structure]
        if later:
            batch = like()
            for step in later:
                step.make(cluster, batch)
        self.saved, self.restored = saved, set()
        for step in self.steps:
            self.restore_rest(cluster, step)
        others = [step for step, made_for in pairs if made_for and not step.made_for]
        if others and cluster.is_chief:
            names = ", ".join(step.__name__ for step in others)
            messages.say_once(f"{names}: called with other batches before; it gets its saved values when it is called.")

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
        if metrics := self.saved.state.get("metrics", {}).get(str(index)):
            step.objective.restore_state(metrics)

    def save(self, cluster: Cluster, steps: int, *, finished: bool = False) -> None:
        """Saves the variables of all steps after `steps` of this pass, or at its end if `finished`. Collective."""
        with context.running(), cluster.pause_timers():
            made = {index: step for index, step in enumerate(self.steps) if step.made_for}
            metrics = {str(index): step.objective.state() for index, step in made.items()}
            if cluster.is_chief:
                number = next(_numbers) + (0 if self.newest is None else self.newest.step)
                self.ends += [number] * finished
                state = {"passes": self.passes + finished, "steps": steps, "ends": self.ends, "metrics": metrics}
                state["made_for"] = [step.made_for for step in self.steps]
                named = {f"step{index}/{name}": v for index, step in made.items() for name, v in step.variables.items()}
                checkpoint_format.write(self.directory, number, checkpoint_format.snapshot(named), state)
            cluster.barrier()
