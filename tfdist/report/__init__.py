"""The reports of a run: console lines, metrics.jsonl, TensorBoard event files, and a description of the run.

    open_report -> Reporter   opening.py, reporter.py: one call per interval, evaluation and event, on the chief
    start_lines, end_lines    summary.py: the first and last lines of a run's log
    Console                   console.py: lines, and a progress bar on a terminal; lines.py, formats.py: its text
    metrics_file.py           lines of metrics.jsonl, removed for steps that a resumed run repeats
    tensorboard_events.py     TensorBoard event files
    time_shares.py            input, compute and communication time of the workers
    run_info.py               config.json and environment.json
    files.py                  atomic replacement and append-only files, used for every file in a workdir

Imports only config, and no TensorFlow.
"""
