"""The end of one start of a run: closes the run's files, and records in starts.jsonl how this start ended."""

import contextlib
import functools
from collections.abc import Iterator

from tfdist.cluster import error_report, process_exit
from tfdist.cluster.control import heartbeat_monitor
from tfdist.config import user_code
from tfdist.training import checkpointing
from tfdist.training.execution import DivergedError
from tfdist.training.loop_services import LoopServices


@contextlib.contextmanager
def record_end(services: LoopServices) -> Iterator[None]:
    """Closes the files of the run after the block, and records how this start of the run ended.

    A SystemExit from a config's code is an error. An error is reported before files are closed, and closing then has a
    time limit, because the workdir may hang. Scripts report or catch their errors themselves; these are reported here
    only if the time limit is reached.
    """
    heartbeat_monitor.call_before_exit(functools.partial(services.ledger.note_end, "lost"))
    run, end, text, failed = services.run, "", "", None
    try:
        # A script may end itself in a callback on all workers.
        with contextlib.nullcontext() if run.is_script else user_code.refuse_exit():
            yield
        end = "stopped" if run.stop.in_progress else "finished"
    except BaseException as error:
        failed = error
        end, text = _describe(failed, services)
        if not run.is_script:
            services.report.close()
            error_report.report_exception(failed)
    with process_exit.end_within(
        heartbeat_monitor.writing_seconds(), failed, f"The workdir {run.workdir} has not answered"
    ):
        checkpointing.close(services)
        heartbeat_monitor.call_before_exit(None)
        services.ledger.note_end(end, text)
    if failed is not None:
        raise failed


def _describe(error: BaseException, services: LoopServices) -> tuple[str, str]:
    text = f"{error}" if isinstance(error, ValueError | OSError | DivergedError) else f"{type(error).__name__}: {error}"
    if isinstance(error, DivergedError):
        return "diverged", text
    if services.run.cluster.num_workers == 1:
        return "failed", text
    lost, named = error_report.find_lost_worker(error)
    return ("lost", named or text) if lost else ("failed", text)
