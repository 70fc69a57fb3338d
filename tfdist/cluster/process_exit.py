"""Ends a process of tfdist: exit code and error message."""

import os
import sys
import traceback
from collections.abc import Callable

from absl import flags

from tfdist.cluster import interruption
from tfdist.cluster.devices import machine
from tfdist.cluster.liveness import peer_loss
from tfdist.config import tensorflow_log, user_code

# Seconds to wait for the name of the lost worker after an error of TensorFlow's communication.
_NAME_SECONDS = 3.0
# Seconds to wait for the chief to announce the error that this worker has, too.
_SAME_FAILURE_SECONDS = 3.0
_UNSAVED = "interrupted before the run was saved"


def run_and_exit(body: Callable[[], int]) -> None:
    """Runs `body`, which may use TensorFlow, and exits with the code that it returns."""
    interruption.install_early_handlers()
    interruption.end_at_second_signal(_end_unsaved)
    with interruption.block_signals():  # TensorFlow's threads must not receive signals.
        import_tensorflow_quietly()
    missing = ()
    try:
        code = body()
    except interruption.StopError as stop:
        _print_error(str(stop))
        code = interruption.EXIT_STOPPED
    except KeyboardInterrupt:
        peer_loss.claim_exit()
        peer_loss.announce_failure(_UNSAVED)
        _print_error(_UNSAVED)
        code = 130
    except Exception as error:
        code, missing = report_exception(error), getattr(error, "missing", ())
    interruption.ignore_signals()
    if code == interruption.EXIT_STOPPED:
        interruption.requeue()
    elif code == interruption.EXIT_PEER_LOST:
        peer_loss.requeue(missing)
    sys.stdout.flush()
    sys.stderr.flush()
    if code not in (0, *interruption.EXITS_SAVED):
        # TensorFlow's shutdown waits up to 18 s for lost peers.
        os._exit(code)
    sys.exit(code)


def _end_unsaved(number: int) -> None:
    """Ends the process after a second stop signal, unless the main thread ends it or starts to save."""
    peer_loss.await_writers()
    if not interruption.is_saving():
        peer_loss.announce_failure(_UNSAVED)
        _print_error(_UNSAVED)
        os._exit(128 + number)


def report_exception(error: Exception) -> int:
    """Writes the error to standard error, with a traceback if it is no user error of tfdist; returns its exit code."""
    lost, named = find_loss(error)
    if lost:
        # The line that names the other worker is not the first one.
        names = ", ".join(peer_loss.named_workers(str(error)))
        about = f" about {names}" if names else ""
        text = f"another worker was lost: restart all workers. TensorFlow error{about}: {first_line(str(error))}"
        peer_loss.announce_failure(text)
        _print_error(named or text)
        return interruption.EXIT_PEER_LOST
    if isinstance(error, peer_loss.MissingWorkersError | peer_loss.ChiefFailedError):
        peer_loss.claim_exit()
        _print_error(str(error))
        return interruption.EXIT_PEER_LOST
    text = user_code.cause(error)[0]
    peer_loss.claim_exit()
    reason = first_line(text)
    of_user = user_code.is_user_error(error)
    if not of_user and peer_loss.reported_by_another(reason, _SAME_FAILURE_SECONDS):
        _print_error(f"as another worker, which shows where: {type(error).__name__}: {reason}")
        return 1
    peer_loss.announce_failure(reason)
    code = getattr(error, "exit_code", 1)
    if of_user:
        if _verbose():
            _print_stack(error)
        place = "" if flags.FLAGS.is_parsed() else user_code.place(error)  # A command has no script.
        _print_error(f"{text}\n  Called at {place}." if place else text)
        return code
    explained = user_code.explain(error)
    if explained and flags.FLAGS.is_parsed() and not _verbose():
        _print_error(f"{explained} --verbosity=1 shows the whole stack.")
    else:
        _print_stack(error)
        _print_error(explained or f"{type(error).__name__}: {reason}")
    return code


def find_loss(error: BaseException) -> tuple[bool, str]:
    """Returns whether the error means that another worker was lost, and the line that names this worker.

    The line is "" if no worker is known to be lost within 3 s. After such an error the calling thread must end the
    process.
    """
    import tensorflow as tf

    if not _worker() and "TF_CONFIG" not in os.environ:  # Such as an error of a remote file system.
        return False, ""
    lost = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    possibly_lost = (tf.errors.InternalError, tf.errors.UnknownError)  # NCCL's after the loss of a worker.
    named = ""
    if isinstance(error, (*lost, *possibly_lost)):
        named = peer_loss.claim_exit_and_name_loss(_NAME_SECONDS) or peer_loss.declare_broken_ring(str(error))
    return bool(named) or isinstance(error, lost), named


def _verbose() -> bool:
    return flags.FLAGS.is_parsed() and flags.FLAGS.verbosity >= 1


def _print_stack(error: Exception) -> None:
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text if sys.stderr.isatty() else user_code.without_colours(text))


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow without its log lines; see `tensorflow_log`.

    If TF_CPP_MIN_LOG_LEVEL is set to another value than "3", it applies instead; "0" shows everything. Processes that
    this one starts inherit "3".
    """
    tensorflow_log.announce()
    if "tensorflow" not in sys.modules:
        machine.check_before_import()
    with tensorflow_log.quiet():
        import tensorflow as tf
    if tensorflow_log.hide(os.environ):  # The initialisation of its devices logs more.
        tf.get_logger().setLevel("ERROR")


def first_line(text: str) -> str:
    """Returns the first line of the message, after the Python stack that TensorFlow prepends."""
    lines = [line.strip() for line in text.splitlines()]
    frames = [index for index, line in enumerate(lines) if line.startswith(("File ", "<stack traces"))]
    message = lines[frames[-1] + (2 if lines[frames[-1]].startswith("File ") else 1) :] if frames else lines
    return next((line for line in message if line), "")


def _print_error(text: str) -> None:
    print(f"tfdist: {_worker()}{user_code.without_colours(text)}", file=sys.stderr)


def _worker() -> str:
    from tfdist.cluster.discovery import environment

    spec = environment.resolve_roughly(os.environ)
    return f"worker {spec.rank}: " if spec.num_workers > 1 else ""
