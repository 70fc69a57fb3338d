"""The reports of a run: console lines, metrics.jsonl, TensorBoard event files, and a description of the run.

    open_report -> Reporter   reporter.py: one call per interval, evaluation and event, on the chief
    Console                   console.py: lines, and a progress bar on a terminal; lines.py: their text
    metrics_file.py           lines of metrics.jsonl; tensorboard_events.py: event files of TensorBoard
    read_back.py              reads the files of a run, for tools
    ledger.py                 starts.jsonl: how long each start takes, and how it ends
    run_info.py               config.json and environment.json
    files.py                  atomic replacement and appending, used for every file in a workdir

Imports no TensorFlow.
"""

import time

# By `time.monotonic`: when this process first imported tfdist, whose `__init__.py` imports this package first. The
# operating system's time of a process counts from before a shell that has become it by exec.
FIRST_IMPORT = time.monotonic()
