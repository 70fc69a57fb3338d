"""The reports of a run: console lines, metrics.jsonl, TensorBoard event files, and a description of the run.

    open_report -> Reporter      reporter.py: one call per interval, evaluation and event; only the chief writes
    slowest_worker                time_shares.py: where each worker spends its time
    Console                      console.py: a progress bar on a terminal, lines in a log file
    files.py                     atomic replacement and append-only files, used for every file in a workdir
    run_info.py                  config.json and environment.json

Imports only config, and no TensorFlow.
"""
