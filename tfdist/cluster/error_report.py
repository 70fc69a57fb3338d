"""The message and the exit code for an error that ends a process."""

import os
import re
import sys
import traceback

from absl import flags

from tfdist.cluster import interruption, stderr
from tfdist.cluster.control import decision, heartbeat_monitor
from tfdist.config import user_code

# Seconds to wait for the name of the lost worker after an error of TensorFlow's communication.
_NAME_SECONDS = 3.0
# Seconds to wait for another worker to announce the same error.
_SAME_FAILURE_SECONDS = 3.0
# Errors of the ring over TCP, and of TensorFlow's collectives, if the workers' graphs differ.
DIFFERENT = re.compile(
    f"{heartbeat_monitor.DIFFERENT_GRAPHS}.*"
    r"|((?:Shape|Data type) mismatch in the collective instance|Collective instance \d+ expected type).*"
)


def report_exception(error: BaseException) -> int:
    """Writes the error to standard error, and announces it to the other workers; returns the exit code.

    Writes it only once. There is no traceback if the message says what to do or, in a config's run, names the line of
    the user's function; --verbosity=1 adds it. The calling thread must then end the process.
    """
    if not hasattr(error, "reported_code"):
        error.reported_code = _report(error)
    return error.reported_code


def _report(error: BaseException) -> int:
    if isinstance(error, interruption.StopError):
        return _tell(str(error), interruption.EXIT_STOPPED)
    if isinstance(error, KeyboardInterrupt):
        return _tell(str(error) or "interrupted before the run was saved", 130)
    if different := DIFFERENT.search(str(error)):
        text = different[0]
        if different[1]:
            place = user_code.place(error)
            here = f" This worker is at {place}." if place else ""
            text = (
                f"{heartbeat_monitor.DIFFERENT_GRAPHS}: {text}{here} Models, losses, steps and the lines that a script "
                "runs must be the same on all workers: remove a condition such as `if rank == 0:`"
            )
        return _tell(text, 1)
    lost, named = find_lost_worker(error)
    if lost:
        unnamed = f"another worker was lost: restart all workers. TensorFlow error: {first_line(str(error))}"
        return _tell(named or unnamed, interruption.EXIT_PEER_LOST)
    if isinstance(error, decision.MissingWorkersError | heartbeat_monitor.ChiefFailedError):
        return _tell(str(error), interruption.EXIT_PEER_LOST)
    text = user_code.original_message(error)
    heartbeat_monitor.reserve_exit()
    reason = first_line(text)
    of_user = user_code.is_user_error(error)
    if not of_user and heartbeat_monitor.reported_by_another(reason, _SAME_FAILURE_SECONDS):
        _print(f"the same error as on another worker, which reports it in full: {type(error).__name__}: {reason}")
        return 1
    heartbeat_monitor.announce_failure(reason)
    code = getattr(error, "exit_code", 1)
    if of_user:
        if _verbose():
            _print_stack(error)
        place = "" if flags.FLAGS.is_parsed() else user_code.place(error)  # Only a script's code calls tfdist.
        _print(f"{text}\n  Called at {place}." if place else text)
        return code
    explained = user_code.explain(error)
    if explained and flags.FLAGS.is_parsed() and not _verbose():
        _print(f"{explained} --verbosity=1 shows the whole stack.")
    else:
        _print_stack(error)
        _print(explained or f"{type(error).__name__}: {reason}")
    return code


def _tell(text: str, code: int) -> int:
    """Reports to the user and to the other workers why this worker ends. Returns the exit code."""
    heartbeat_monitor.reserve_exit()
    heartbeat_monitor.announce_failure(text)
    _print(text)
    return code


def find_lost_worker(error: BaseException) -> tuple[bool, str]:
    """Returns whether the error means that another worker was lost, and a line that names the lost worker.

    The line is "" if no loss is known within `_NAME_SECONDS`.
    """
    import tensorflow as tf

    if not stderr.prefix() and "TF_CONFIG" not in os.environ:  # One worker: the error has another cause.
        return False, ""
    lost = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    possibly_lost = (tf.errors.InternalError, tf.errors.UnknownError)  # NCCL raises these after a loss.
    named = ""
    if isinstance(error, (*lost, *possibly_lost)):
        named = heartbeat_monitor.wait_for_loss(_NAME_SECONDS) or heartbeat_monitor.mark_broken_ring(str(error))
    return bool(named) or isinstance(error, lost), named


def _verbose() -> bool:
    return flags.FLAGS.is_parsed() and flags.FLAGS.verbosity >= 1


def _print_stack(error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text if sys.stderr.isatty() else user_code.without_colours(text))


def first_line(text: str) -> str:
    """Returns the first line of the message, after the Python stack that TensorFlow prepends."""
    lines = [line.strip() for line in text.splitlines()]
    frames = [index for index, line in enumerate(lines) if line.startswith(("File ", "<stack traces"))]
    message = lines[frames[-1] + (2 if lines[frames[-1]].startswith("File ") else 1) :] if frames else lines
    return next((line for line in message if line), "")


def _print(text: str) -> None:
    stderr.print_error(user_code.without_colours(text))
