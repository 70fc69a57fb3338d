"""Runs and ends a process of tfdist: exit code and message; for errors, see error_report.py."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.control import heartbeat_monitor
from tfdist.cluster.devices import machine
from tfdist.cluster.stderr import print_error
from tfdist.config import tensorflow_log


def run_and_exit(body: Callable[[], int], *, saves: bool = True) -> None:
    """Runs `body`, which may use TensorFlow, and exits with its code; `saves`: whether a stop signal saves the run."""
    interrupted = "interrupted before the run was saved" if saves else "interrupted"
    interruption.install_early_handlers(saves)
    interruption.end_at_second_signal(lambda number: _end_unsaved(interrupted, number))
    with interruption.block_signals():  # TensorFlow's threads must not receive signals.
        import_tensorflow_quietly()
    try:
        code = body()
    except (Exception, KeyboardInterrupt) as error:
        from tfdist.cluster import error_report

        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (interrupted,)
        code = error_report.report_exception(error)
    interruption.ignore_signals()
    _requeue(code)
    sys.stdout.flush()
    sys.stderr.flush()
    if code not in (0, interruption.EXIT_STOPPED):
        # TensorFlow's shutdown waits up to 18 s for lost peers.
        interruption.end_process(code)
    sys.exit(code)


def _requeue(code: int) -> None:
    if code == interruption.EXIT_STOPPED:
        slurm_requeue.requeue()
    elif code == interruption.EXIT_PEER_LOST:
        heartbeat_monitor.requeue()


@contextlib.contextmanager
def end_within(seconds: float, error: BaseException | None, what: str) -> Iterator[None]:
    """Ends the process with the exit code of `error` and the message `what` if the block takes longer than `seconds`.

    If `error` is None, there is no limit.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            from tfdist.cluster import error_report

            code = error_report.report_exception(error)
            print_error(f"{what} for {seconds:.0f} s: this process ends now")
            _requeue(code)
            interruption.end_process(code)

    if error is not None:
        with contextlib.suppress(RuntimeError):  # No thread can start: no limit.
            threading.Thread(target=watch, name="tfdist-end", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end_unsaved(text: str, number: int) -> None:
    """Ends the process after a second stop signal, unless the main thread exits or starts to save."""
    heartbeat_monitor.await_writers()
    if not interruption.is_stopping():
        heartbeat_monitor.announce_failure(text)
        print_error(text)
        interruption.end_process(128 + number)


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow without most of its log lines; see `tensorflow_log`."""
    tensorflow_log.announce()
    if "tensorflow" not in sys.modules:
        machine.check_before_import()
    hidden = tensorflow_log.hide(os.environ)
    import tensorflow as tf

    if hidden:
        tf.get_logger().setLevel("ERROR")
