"""A run that another process trains again, step by step: its commands and answers. Imports no TensorFlow."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

from tfdist.tools import child_runs
from tfdist.tools.saved_runs.same_bits import stepwise
from tfdist.tools.saved_runs.same_bits.stepwise import LOG, Task


class ReplayError(Exception):
    """The steps cannot be trained again here; says why."""


class Replayed:
    """A process that trains a run again, and stops before and after each step; raises ReplayError if it has failed.

    Tasks after the first one go on in a process of their own, with another config for example.
    """

    def __init__(self, name: str, tasks: Sequence[Task]):
        self.name, self._tasks = name, list(tasks)
        self._start()

    def _start(self) -> None:
        context, task = multiprocessing.get_context("spawn"), self._tasks[0]
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=stepwise.serve, args=(theirs, task), daemon=True)
        task.scratch.mkdir(parents=True, exist_ok=True)
        self._process.start()
        theirs.close()
        # See `facts`; None: not received yet.
        self._facts: dict[str, str] | None = None

    def facts(self) -> dict[str, str]:
        """Returns hashes of data and code here, by the names of a `chain.Start`; first called before `event`."""
        if self._facts is None:
            _, _, self._facts = self._receive()
        return self._facts

    def event(self) -> tuple[str, int, str]:
        """Waits for the next stop: (place, the number of steps that are done, the hash of the state).

        The place is "before" a step, which is after all that follows the step before, such as evaluation and callbacks;
        "after" a step; or "ended".
        """
        self.facts()
        found = self._receive()
        if len(self._tasks) > 1 and found[:2] == ("before", self._tasks[1].first):
            self.ask("save")
            self.close()
            del self._tasks[0]
            self._start()
            return self.event()
        return found

    def ask(self, command: str, argument: Any = None) -> Any:
        """Returns the answer to a command: a method of `replay.Served`."""
        self._send(command, argument)
        return self._receive()

    def go(self) -> None:
        """Lets the process go on to its next stop."""
        self._send("go", None)

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _send(self, command: str, argument: Any) -> None:
        try:
            self._connection.send((command, argument))
        except OSError:
            raise ReplayError(f"{self.name}: the process that trained it again has ended.") from None

    def _receive(self) -> Any:
        try:
            found = self._connection.recv()
        except (EOFError, OSError):
            log = self._tasks[0].scratch / LOG
            end = f"\n{child_runs.end_of(log)}" if log.is_file() else ""
            raise ReplayError(f"{self.name}: the process that trained it again has ended.{end}") from None
        if isinstance(found, tuple) and found[0] == "failed":
            raise ReplayError(f"{self.name} cannot be trained again here: {found[2]}")
        return found
