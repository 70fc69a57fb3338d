"""One worker of one participant: a process that runs the requested numbers of steps, and measures them.

`python -m tests.benchmark.worker JOB` reads lines of JSON, {"case": name, "steps": number}, and answers each
with one line: {"seconds": elapsed, "cpu_seconds": of this process, "peak_mb": resident memory, the highest so far}.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    """Builds the job's cases, and answers requests until standard input is closed."""
    job = json.loads(sys.argv[1])
    if job["core"] is not None:
        os.sched_setaffinity(0, {job["core"]})  # Before TensorFlow counts the cores.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # All other output goes to standard error.

    if job["kind"] == "ddp":
        from tests.benchmark.pytorch.ddp import ddp as make_cases
    else:
        from tests.benchmark import cases as cases_lib

        make_cases = cases_lib.KINDS[job["kind"]]
    cases = make_cases(job, Path(job["folder"]))
    print(json.dumps({"cases": list(cases)}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        started, cpu = time.perf_counter(), time.process_time()
        cases[request["case"]](request["steps"])
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak}), file=answers)
    answers.flush()
    os._exit(0)  # All workers exit at once: TensorFlow's shutdown would wait for the others.


if __name__ == "__main__":
    main()
