"""tfdist.main, traced: writes which functions of tfdist are entered in a step, a save, an evaluation and a stop.

A worker with STOPS=1 in its environment stops itself by SIGTERM after six executions. The file that the variable TRACED
names gets a list of [file, function] for each of them.
"""

import atexit
import collections
import json
import os
import pathlib
import runpy
import signal
import sys
import threading

import tfdist

PACKAGE = f"{pathlib.Path(tfdist.__file__).parent}/"
EXECUTION = ("training/execution.py", "execute")
PHASES = {
    ("training/checkpointing.py", "save"): "save",
    ("training/checkpointing.py", "save_stopped"): "stop",
    ("training/evaluation/evaluate.py", "evaluate"): "evaluation",
}
LAST = 6


class Tracer:
    """Follows the calls of the main thread, and what other threads enter meanwhile."""

    def __init__(self) -> None:
        self.entered: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
        self.executions, self.phases = 0, [""]

    def __call__(self, frame, event, _) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE) or event not in ("call", "return"):
            return
        place = (path.removeprefix(PACKAGE), frame.f_code.co_name)
        main = threading.current_thread() is threading.main_thread()
        if event == "call":
            if main and place in PHASES:
                self.phases.append(PHASES[place])
            for phase in self.phases[-1:] if self.phases[-1] else ["step"] if self.executions == 1 else []:
                self.entered[phase].add(place)
        elif main and place in PHASES:
            self.phases.pop()
        elif main and place == EXECUTION and self.phases == [""]:
            self.executions += 1
            if self.executions == LAST and os.environ.get("STOPS") == "1":
                os.kill(os.getpid(), signal.SIGTERM)

    def write(self) -> None:
        sys.setprofile(None)
        found = {phase: sorted(places) for phase, places in self.entered.items()}
        pathlib.Path(os.environ["TRACED"]).write_text(json.dumps(found))


tracer = Tracer()
leave = os._exit


def write_and_leave(code: int) -> None:
    """The end of a process of tfdist, which ends by os._exit."""
    tracer.write()
    leave(code)


os._exit = write_and_leave
atexit.register(tracer.write)
threading.setprofile(tracer)
sys.setprofile(tracer)
runpy.run_module("tfdist.main", run_name="__main__", alter_sys=True)
