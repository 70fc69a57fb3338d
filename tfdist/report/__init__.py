"""The reports of a run: console lines, metrics.jsonl, TensorBoard event files, and a description of the run.

    Reporter                  reporter.py: one call per interval, evaluation and event, on the chief
    Console                   console.py: lines, and a progress bar on a terminal; lines.py: their text
    metrics_file.py           lines of metrics.jsonl; tensorboard_events.py: event files of TensorBoard
    read_back.py              reads the files of a run, for tools
    ledger.py                 starts.jsonl: how long each start takes, and how it ends
    run_info.py               config.json and environment.json
    files.py                  atomic replacement and appending, for the files of a workdir

Imports no TensorFlow.
"""

import os
import time

# When this process began, by `time.monotonic`: at its first import of tfdist, whose `__init__.py` imports this package
# first, or at the fork. The operating system's start time would include a shell that became this process by exec.
began = time.monotonic()


def _note_fork() -> None:
    global began
    began = time.monotonic()


os.register_at_fork(after_in_child=_note_fork)
