"""One worker of one contestant: a process that does as many steps as it is told to, and says how long they took.

`python -m tfdist.tools.benchmark.worker JOB` reads lines of JSON, {"case": name, "steps": number}, and answers
each with one: {"seconds": of the clock, "cpu_seconds": of this process, "peak_mb": resident memory so far}.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    """Prepares what the job names, and answers until nobody asks any more."""
    job = json.loads(sys.argv[1])
    if job["core"] is not None:
        os.sched_setaffinity(0, {job["core"]})  # Before TensorFlow counts the cores.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Whatever else is printed does not come between.

    from tfdist import config
    from tfdist.cluster import malloc

    malloc.keep_freed(config.Cluster(keep_freed_memory=job["keep_freed_memory"]), os.environ)

    if job["kind"] == "ddp":
        from tfdist.tools.benchmark.pytorch_ddp import ddp as entry
    else:
        from tfdist.tools.benchmark import cases as cases_lib

        entry = cases_lib.ENTRIES[job["kind"]]
    cases = entry(job, Path(job["folder"]))
    print(json.dumps({"cases": list(cases)}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        started, cpu = time.perf_counter(), time.process_time()
        cases[asked["case"]](asked["steps"])
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak}), file=answers)
    answers.flush()
    os._exit(0)  # The others end at the same moment: TensorFlow's own end would wait for them.


if __name__ == "__main__":
    main()
