"""What `tfdist.batches` saves in a workdir: all that the steps of a loop use, after each pass over the data.

A script that is started again skips the passes that are saved. After each of them it has the values of that pass, so
that what it does between two passes, such as an evaluation or a change of the learning rate, is what it did before. A
pass that is not saved, because the script left it or the disk was full, is made again.
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
from tfdist.report import files

_numbers = itertools.count(1)


@dataclasses.dataclass
class Place:
    """The checkpoints of a workdir, and the passes that this process has begun with it."""

    directory: Path
    # Each `own_loop.Step` of the script, also later ones.
    steps: list[Any]
    # What earlier starts saved last; None: nothing.
    newest: Saved | None
    # The number of the checkpoint after each pass; None: the pass was not saved.
    ends: list[int | None]
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
        saved = restore.find(cluster, lambda: checkpoint_format.newest_valid(directory, messages.say, is_ours=True))
        if saved is None:
            return cls(directory, steps, None, [])
        # Releases before had no list: their newest checkpoint stands for all passes.
        return cls(directory, steps, saved, saved.state.get("ends", [saved.step] * saved.state["passes"]))

    def begin_pass(self, cluster: Cluster, structure: str, like: Callable[[], Any]) -> int:
        """Returns the first step to make in the next pass, and restores what the script had at this point. Collective.

        Args:
            structure: of the batches of the pass.
            like: makes such a batch, without its element.
        """
        if self.begun and cluster.is_chief:
            messages.log_once(
                f"the script has left pass {self.passes + 1} over the data before its end, so it is not saved: a later "
                "start makes it again. To have such passes saved, let the data end, as by dataset.take(steps).",
                "a pass that is left",
            )
        self.passes += 1
        number = self.ends[self.passes] if self.passes < len(self.ends) else None
        stopped = self.newest is not None and self.newest.state["steps"] and self.newest.state["passes"] == self.passes
        self.begun = number is None
        if self.begun and not stopped:
            return 0
        saved = self.newest if stopped or number == self.newest.step else self._at_end(cluster, number)
        if saved is not None:
            self._restore(cluster, saved, structure, like)
        return self.newest.state["steps"] if self.begun else sys.maxsize

    def _at_end(self, cluster: Cluster, number: int) -> Saved | None:
        """Returns the checkpoint after the pass; None: it is not valid, and a line says so."""
        saved = None
        if cluster.is_chief:
            try:
                saved = checkpoint_format.verify(directory_lib.step_path(self.directory, number))
            except checkpoint_format.DamagedCheckpointError as error:
                messages.say(
                    f"Pass {self.passes + 1} is finished, and its checkpoint is not valid: {error}. What the script "
                    "does after this pass, it does with other values than before."
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
            messages.log_once(f"{names}: called with other batches before; it gets its saved values when it is called.")

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
        """Saves the variables of all steps after `steps` of this pass, or at its end if `finished`. Collective.

        A finished pass that cannot be written is told, and made again by a later start.

        Raises:
            OSError: on the chief, a pass that is not finished cannot be written.
        """
        with script_state.running(), cluster.monitor.pause_timers():
            made = {index: step for index, step in enumerate(self.steps) if step.made_for}
            metrics = {str(index): step.objective.state() for index, step in made.items()}
            if cluster.is_chief:
                named = {f"step{index}/{name}": v for index, step in made.items() for name, v in step.variables.items()}
                state = {"steps": steps, "metrics": metrics, "made_for": [step.made_for for step in self.steps]}
                try:
                    self._write(checkpoint_format.snapshot(named), state, finished)
                except OSError as error:
                    text = f"pass {self.passes + 1} could not be saved in {self.directory}"
                    text = f"{text}: {files.describe_error(error)}. A later start makes it again."
                    if not finished:
                        raise OSError(f"The loop was stopped, and {text}") from None
                    messages.say(f"WARNING: {text} The loop goes on.")
            cluster.barrier()
        self.begun = self.begun and not finished

    def _write(self, arrays: dict[str, Any], state: dict[str, Any], finished: bool) -> None:
        number, ends = next(_numbers) + (0 if self.newest is None else self.newest.step), list(self.ends)
        if finished:
            ends += [None] * (self.passes + 1 - len(ends))
            ends[self.passes] = number
        state |= {"passes": self.passes + finished, "ends": ends}
        checkpoint_format.write(self.directory, number, arrays, state)
        self.ends = ends
