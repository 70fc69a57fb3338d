"""What a process prints when an error ends it."""

import pytest
from absl import flags

from tfdist.cluster import process_exit
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
        (
            lambda path: hostlist.expand_counts("two"),
            False,
            "tfdist: Not a valid Slurm list of counts, such as 2(x3),1. ",
        ),
        (
            lambda path: files.replace_file(str(path / "absent" / "file"), b""),
            False,
            "tfdist: [Errno 2] No such file or ",
        ),
        (lambda path: hostlist.expand_counts("9" * 5000), True, "ValueError: Exceeds the limit "),
        (lambda path: order.steps_per_epoch(8, 0), True, "ZeroDivisionError: "),
    ],
    ids=["message of tfdist", "file", "ValueError of Python", "ArithmeticError of Python"],
)
def test_messages_of_tfdist_stand_alone_and_those_of_python_follow_a_stack(
    capfd, tmp_path, no_flags, fails, shows_stack, message
):
    """As mistakes of the user, errors in tfdist's own code were one line such as "invalid literal for int()"."""
    with pytest.raises((ValueError, OSError, ArithmeticError)) as raised:
        fails(tmp_path)
    assert process_exit.report_exception(raised.value) == 1
    said = capfd.readouterr().err
    assert ("Traceback" in said) is shows_stack, said
    assert message in said and said.count("tfdist: ") == 1, said
