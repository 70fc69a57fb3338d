"""What a process prints when an error ends it."""

import signal

import pytest
import tensorflow as tf
from absl import flags
from launching import python

from tfdist.cluster import error_report, interruption
from tfdist.cluster.discovery import hostlist
from tfdist.data import order
from tfdist.report import files


@pytest.fixture
def no_flags():
    """As in a process whose command line was not parsed: another test may have done so in this one."""
    parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.unparse_flags()
    yield
    if parsed:
        flags.FLAGS.mark_as_parsed()


@pytest.mark.parametrize(
    ("fails", "shows_stack", "message"),
    [
        (lambda path: hostlist.expand_counts("two"), False, "Not a valid Slurm list of counts"),
        (lambda path: files.replace_file(str(path / "absent" / "file"), b""), False, "[Errno 2]"),
        (lambda path: hostlist.expand_counts("9" * 5000), True, "ValueError: Exceeds the limit "),
        (lambda path: order.steps_per_epoch(8, 0), True, "ZeroDivisionError: "),
    ],
)
def test_messages_of_tfdist_stand_alone_and_those_of_python_follow_a_stack(
    capfd, tmp_path, no_flags, fails, shows_stack, message
):
    """As mistakes of the user, errors in tfdist's own code were one line such as "invalid literal for int()"."""
    with pytest.raises((ValueError, OSError, ArithmeticError)) as raised:
        fails(tmp_path)
    assert error_report.report_exception(raised.value) == 1
    said = capfd.readouterr().err
    assert ("Traceback" in said) is shows_stack, said
    assert message in said and said.count("tfdist: ") == 1, said


def test_an_error_of_one_worker_is_no_loss_of_another(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    error = tf.errors.UnavailableError(None, None, "no network to gs://data")
    assert error_report.find_lost_worker(error) == (False, "")


SIGNALS = """
import os, signal
from tfdist.cluster import interruption
interruption.install_early_handlers()
for number in range(2):
    with interruption.handle_signals(True) as stop:
        print(number, stop.reason, flush=True)
    os.kill(os.getpid(), signal.SIGUSR1)
interruption.restore_handlers()
os.kill(os.getpid(), signal.SIGTERM)
"""


def run(program):
    """Exit code and output of a program."""
    done = python("-c", program, code=None)
    return done.returncode, done.stdout


def test_a_signal_between_runs_stops_the_second_or_ends_one_without_a_workdir():
    assert run(SIGNALS) == (-signal.SIGTERM, "0 None\n1 SIGUSR1\n")


FORKS = """
import os, signal
from tfdist.cluster import interruption
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
def in_child():
    pid = os.fork()
    if not pid:
        os._exit(int(signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for _ in range(2):
    with interruption.handle_signals(True):
        inside = in_child()
    print(inside, in_child())
"""


def test_forked_processes_have_the_users_handlers_after_a_run():
    assert run(FORKS)[1] == "0 1\n0 1\n"


def test_a_second_ctrl_c_ends_a_run_unless_it_is_being_saved(own_signals):
    request = interruption.install_handlers()
    request.in_progress = True
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    assert request.reason == "SIGINT"
    request.in_progress = False
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
