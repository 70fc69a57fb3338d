"""What a run tells about itself, in real files, on a real pseudo-terminal, read back by TensorBoard's own reader."""

import concurrent.futures
import contextlib
import fcntl
import io
import json
import math
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tfdist.config import user_code
from tfdist.report import console, files, read_back, run_info
from tfdist.report import lines as lines_lib
from tfdist.report import reporter as reporter_lib

RUN = dict(rank=0, num_replicas=2, steps_per_epoch=100)


def open_quiet(workdir, stream=None, tensorboard=False, **resumed):
    screen = console.Console(stream=stream or io.StringIO(), total_steps=400, epochs=4.0)
    reporter = reporter_lib.Reporter(console=screen, **RUN)
    reporter.open_files(workdir, tensorboard=tensorboard, **resumed)
    return reporter


def train(reporter, step, values=None, **changes):
    rest = {"learning_rate": 0.1, "seconds": 0.5, "steps": 10, "num_examples": 640, "wait_share": 0.03}
    reporter.train(step, {"loss": 1.0 / step} if values is None else values, **(rest | changes))


def evaluate(reporter, step, values=None, **changes):
    rest = {"seconds": 0.5, "num_examples": 17}
    reporter.evaluation(step, {"loss": 0.5} if values is None else values, **(rest | changes))


def read_lines(workdir):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    text = (workdir / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def scalars(workdir, run="train"):
    accumulator = EventAccumulator(str(workdir / "tensorboard" / run), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    values = {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}
    return {tag: pairs for tag, pairs in values.items() if pairs}


def tensor_steps(workdir, run="train"):
    """Returns the steps of each tag as TensorBoard reads them without its data server."""
    accumulator = plugin_event_accumulator.EventAccumulator(
        str(workdir / "tensorboard" / run), tensor_size_guidance={"scalars": 0}
    )
    accumulator.Reload()
    tags = accumulator.Tags()["tensors"]
    return {tag: [event.step for event in accumulator.Tensors(tag)] for tag in tags}


@contextlib.contextmanager
def files_limited_to(size):
    """Makes every file of this process full at `size` bytes, as a disk without space does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_epoch_is_one_line_of_a_log_file():
    stream = io.StringIO()
    reporter = open_quiet(None, stream=stream)
    values = {"loss": np.float32(0.43214), "accuracy": 0.875}
    train(reporter, 100, values, seconds=41.234, steps=100, num_examples=6400)
    assert stream.getvalue() == ""  # An evaluation of the same step would share the line.
    evaluate(reporter, 100, {"loss": 0.5, "accuracy": 0.9}, best=True)
    train(reporter, 400, values, seconds=2.0, steps=50, num_examples=3200)
    reporter.progress(400, "evaluating")
    assert stream.getvalue().count("\n") == 1
    reporter.progress(400)
    first, last = stream.getvalue().splitlines()
    start = r"\d\d:\d\d:\d\d  epoch "
    values = "loss 0.4321/0.5000  accuracy 0.8750/0.9000  best"
    assert re.fullmatch(rf"{start}1/4  100 steps  41\.2 s  155/s  {values}", first)
    assert re.fullmatch(rf"{start}4/4  50 steps  2 s  1,600/s  loss 0.4321  accuracy 0.8750", last)


def test_the_time_of_each_worker_is_recorded_and_the_slowest_is_named(tmp_path):
    reporter = open_quiet(tmp_path)
    shares = [(0.01, 0.59, 0.4), (0.1, 0.8, 0.1)]
    train(reporter, 10, {}, worker_shares=shares, wait_share=0.05)
    train(reporter, 20, {}, worker_shares=[*shares, *[(0.0, 0.7, 0.3)] * 4, (0.0, 0.95, 0.05)])
    train(reporter, 40, {}, worker_shares=[], wait_share=None)  # Not timed.
    first, second, last = read_lines(tmp_path)
    assert first["worker_shares"] == [list(one) for one in shares] and first["slowest_worker"] == 1
    assert len(second["worker_shares"]) == 7 and second["slowest_worker"] == 6
    assert not {"input_wait_share", "worker_shares"} & {*last}


def test_metrics_hold_every_number(tmp_path):
    reporter = open_quiet(tmp_path)
    reporter.workers(*[["1 worker: host a, 2 CPU devices"]] * 2)
    values = {"loss": np.float32(0.1), "accuracy": 0.875}
    train(reporter, 100, values, learning_rate=0.05, seconds=2.0, steps=50, num_examples=3200, wait_share=0.25)
    evaluate(reporter, 100, {"accuracy": 0.9}, num_examples=1797, best=True)
    reporter.event("saved", step=100)
    reporter.event("stopped by SIGTERM")
    reporter.close()

    workers, interval, evaluation, saved, stopped = lines = read_lines(tmp_path)
    now = time.time()
    assert all(now - 60 < line.pop("time") < now + 1 for line in lines)
    assert workers == {"kind": "workers", "workers": ["1 worker: host a, 2 CPU devices"]}
    speeds = {"examples_per_second": 1600.0, "examples_per_second_per_replica": 800.0, "input_wait_share": 0.25}
    values = {"loss": float(np.float32(0.1)), "accuracy": 0.875, "learning_rate": 0.05, **speeds}
    assert interval == {"kind": "train", "step": 100, "epoch": 1.0, **values, "seconds": 2.0, "steps": 50}
    values = {"accuracy": 0.9, "num_examples": 1797, "seconds": 0.5, "examples_per_second": 3594.0, "best": True}
    assert evaluation == {"kind": "evaluation", "name": "evaluation", "step": 100, "epoch": 1.0, **values}
    assert saved == {"kind": "event", "text": "saved", "step": 100}
    assert stopped == {"kind": "event", "text": "stopped by SIGTERM"}


def test_nan_and_infinity_are_null_in_the_file_and_named_on_the_console(tmp_path):
    reporter = open_quiet(tmp_path)
    train(reporter, 10, {"loss": math.nan, "margin": math.inf})
    evaluate(reporter, 10, {"loss": -math.inf}, seconds=0.0)
    interval, evaluation = read_lines(tmp_path)
    assert (interval["loss"], interval["margin"]) == (None, None)
    assert (evaluation["loss"], evaluation["examples_per_second"]) == (None, None)
    text = reporter.console.stream.getvalue()
    assert text.split()[-4:] == ["loss", "nan/-inf", "margin", "inf"]


def test_a_value_of_a_script_with_a_name_that_the_file_uses_gets_another(tmp_path):
    reporter = open_quiet(tmp_path)
    train(reporter, 10, {"loss": 1.0, "step": 2.0})
    evaluate(reporter, 10, {"best": 3.0})
    interval, evaluation = read_lines(tmp_path)
    assert (interval["step"], interval["step_"], interval["loss"]) == (10, 2.0, 1.0)
    assert (evaluation["step"], evaluation["best_"]) == (10, 3.0)


def test_a_run_that_only_evaluates_removes_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for torn in (b'{"kind": "train"', b'{"kind": "train", "step": 901}', b"\0\0\0\n", b"17\n"):
        path.write_bytes(b'{"kind": "train", "step": 900}\n' + torn)
        open_quiet(tmp_path, resume_step=None).close()
        assert path.read_bytes() == b'{"kind": "train", "step": 900}\n'


def test_tensorboard_shows_training_and_evaluation_as_two_runs_with_one_tag(tmp_path):
    reporter = open_quiet(tmp_path, tensorboard=True, resume_step=0)
    for step in (50, 100, 210):
        steps = step - step // 2
        train(reporter, step, {"loss": 1.0 / step, "accuracy": 0.5}, steps=steps, num_examples=64 * steps)
        evaluate(reporter, step, {"accuracy": 0.25})
    reporter.close()
    losses = {step: np.float32(1.0 / step) for step in (50, 100, 210)}
    found = scalars(tmp_path)
    speeds = {tag: found.pop(tag) for tag in list(found) if tag.startswith("speed/")}
    assert found == {
        "loss": list(losses.items()),
        "accuracy": [(50, 0.5), (100, 0.5), (210, 0.5)],
        "learning_rate": [(step, np.float32(0.1)) for step in losses],
    }
    assert speeds["speed/examples_per_second"][:1] == [(50, 3200.0)]
    assert speeds["speed/examples_per_second_per_replica"][:1] == [(50, 1600.0)]
    assert speeds["speed/input_wait_share"] == [(step, np.float32(0.03)) for step in losses]
    assert scalars(tmp_path, "evaluation") == {"accuracy": [(50, 0.25), (100, 0.25), (210, 0.25)]}


def start(workdir, after, *steps, evaluated=None, **values):
    """A start that resumes after a step, whose last evaluation is `evaluated`; trains and evaluates in `steps`."""
    resumed = {"resume_step": after, "resume_evaluated": after if evaluated is None else evaluated}
    reporter = open_quiet(workdir, tensorboard=True, **resumed)
    for step in steps:
        train(reporter, step, values or None, steps=100, num_examples=6400, wait_share=None)
        evaluate(reporter, step, {"loss": 0.25})
    reporter.close()


def steps_of(workdir, run):
    """The steps with a loss, as TensorBoard reads them."""
    return [step for step, _ in scalars(workdir, run).get("loss", [])]


def test_tensorboard_has_each_step_once_however_often_a_run_resumes(tmp_path):
    start(tmp_path, 0, 100, 200, 300)
    folder = tmp_path / "tensorboard" / "train"
    (events,) = folder.iterdir()
    events.write_bytes(events.read_bytes()[:-5])  # As kill -9 in the middle of a write leaves it.
    for _ in range(3):  # Starts within one second are still read in their order.
        start(tmp_path, 200, 300, 400, loss=7.0)
    expected = [np.float32(0.01), np.float32(0.005), 7.0, 7.0]
    found = scalars(tmp_path)
    assert found["loss"] == list(zip((100, 200, 300, 400), expected, strict=True))
    assert {tag: [100, 200, 300, 400] for tag in found} == tensor_steps(tmp_path)
    earlier = {path: path.read_bytes() for path in (tmp_path / "tensorboard").rglob("*tfevents*")}
    start(tmp_path, 400, evaluated=100)  # The evaluations since then are made again.
    assert steps_of(tmp_path, "evaluation") == [100]
    assert scalars(tmp_path) == found  # Nothing of the training is void.
    (folder / "events.out.tfevents.9.empty").touch()
    (folder / "events.out.tfevents.9.other").write_bytes(b"no events" * 9)
    start(tmp_path, 200, 300, loss=9.0)
    assert scalars(tmp_path)["loss"] == [*zip((100, 200, 300), (*expected[:2], 9.0), strict=True)]
    start(tmp_path, 100, 200)  # The newer checkpoints were damaged: before the second start.
    lines = read_back.read_records(tmp_path / "metrics.jsonl")
    for kind in ("train", "evaluation"):
        assert [line["step"] for line in lines if line["kind"] == kind] == steps_of(tmp_path, kind) == [100, 200]
    assert all(path.read_bytes() == content for path, content in earlier.items())
    start(tmp_path, 0)  # The run starts again.
    assert scalars(tmp_path) == {}


def test_workers_other_than_the_chief_are_quiet_unless_something_is_wrong(tmp_path, capfd):
    reporter = reporter_lib.Reporter(console=None, **(RUN | {"rank": 3}))
    reporter.open_files(tmp_path / "run", tensorboard=True)
    reporter.workers(["worker 3"], ["worker 3"])
    train(reporter, 10)
    reporter.progress(11)
    evaluate(reporter, 10)
    reporter.event("saved")
    assert capfd.readouterr() == ("", "")
    reporter.warning("the disk is slow")
    reporter.close()
    assert capfd.readouterr() == ("", "tfdist: worker 3: the disk is slow\n")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_reported_once_and_training_continues(tmp_path, capfd):
    reporter = open_quiet(tmp_path, tensorboard=True)
    for step in range(1, 21):
        train(reporter, step)
    metrics, (events,) = tmp_path / "metrics.jsonl", (tmp_path / "tensorboard" / "train").iterdir()
    for size in (events.stat().st_size, metrics.stat().st_size):
        with files_limited_to(size + 20):  # The next record fits in part.
            train(reporter, 30)
            train(reporter, 40)
    warnings = capfd.readouterr().err.splitlines()
    assert len(warnings) == 2 and all("(File too large). Training continues" in warning for warning in warnings)
    assert "metrics.jsonl" in warnings[0] and "tfevents" in warnings[1]
    train(reporter, 50)
    reporter.close()
    assert [line["step"] for line in read_lines(tmp_path) if line["kind"] == "train"] == [*range(1, 21), 50]
    assert [step for step, _ in scalars(tmp_path)["loss"]] == [*range(1, 21), 30, 40, 50]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tensorboard").touch()
    train(open_quiet(tmp_path / "other", tensorboard=True, evaluates=False), 10)
    assert capfd.readouterr().err.count("tfevents") == 1


def test_metrics_that_are_deleted_in_a_live_run_are_written_again(tmp_path):
    reporter = open_quiet(tmp_path)
    reporter.event("first")
    (tmp_path / "metrics.jsonl").unlink()
    reporter.event("second")
    assert [line["text"] for line in read_lines(tmp_path)] == ["second"]


def test_a_log_on_a_full_disk_and_text_that_it_cannot_encode_do_not_end_the_training(tmp_path):
    with open("/dev/full", "w") as stream:
        reporter = open_quiet(None, stream=stream)
        train(reporter, 10)
        reporter.event("saved")
        with contextlib.suppress(OSError):  # What the stream still holds is lost with it.
            stream.close()
    with open(tmp_path / "log", "w", encoding="ascii") as stream:
        open_quiet(None, stream=stream).event("saved in /dät")
    assert (tmp_path / "log").read_text() == "saved in /d\\xe4t\n"


def shown(text):
    """The lines of a terminal as they look in the end: what follows the last carriage return."""
    lines = text.replace("\x1b[K", "").split("\n")
    return [line.removesuffix("\r").rpartition("\r")[2] for line in lines]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = pty.openpty()
    stream = os.fdopen(follower, "w")

    def resize(columns):
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read():
        stream.write("\a")  # The kernel hands on what was written when it comes to it: this is the end of it.
        stream.flush()
        text = ""
        while not text.endswith("\a"):
            text += os.read(leader, 1 << 16).decode()
        return text[:-1]

    yield stream, resize, read
    stream.close()
    os.close(leader)


def test_a_terminal_shows_one_bar_and_keeps_a_line_for_each_report(terminal):
    stream, resize, read = terminal
    assert not console.is_terminal(stream)  # Without a size, as that of mpirun.
    resize(160)
    assert console.is_terminal(stream) and not console.is_terminal(io.StringIO())
    reporter = open_quiet(None, stream=stream)
    reporter.workers(["worker 0"], ["worker 0"])
    train(reporter, 100, {"loss": 0.5})
    evaluate(reporter, 100, {"loss": 0.25})
    train(reporter, 200, {"loss": 0.125})
    first, second, bar = shown(text := read())
    assert [first, second] == ["worker 0", "epoch 1/4  10 steps  0.5 s  1,280/s  loss 0.5000/0.2500"]
    assert re.fullmatch(r" 50% \|#{10} {10}\| 200/400  0:\d\d:\d\d left", bar)
    time.sleep(console.REDRAW_SECONDS)
    reporter.progress(300, "evaluating")
    text += read()
    assert re.match(r" 75% \|#{15} {5}\| 300/400  \S+ left  evaluating$", shown(text)[2]) and len(shown(text)) == 3
    reporter.progress(300)
    for columns, bar in ((80, r"\|#{20}\| 400/400  0:00:00 left"), (20, r"\|#{13}")):
        resize(columns)
        train(reporter, 400, {"loss": 0.0625})
        text += read()
        assert re.fullmatch(f"100% {bar}", shown(text)[-1]) and len(shown(text)[-1]) < columns
    reporter.close()
    *lines, last, end = shown(text + read())
    assert end == "" and last.endswith("  loss 0.06250")
    texts = [line for line in (*lines, last) if line.startswith("epoch")]
    assert [text.split()[1] for text in texts] == ["1/4", "2/4", "4/4", "4/4"]


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (
            lines_lib.number,
            {
                **{0.43214: "0.4321", 1: "1.000", 0: "0.000", 0.9: "0.9000", 3.1e-5: "3.100e-05", 12.5: "12.50"},
                **{999.96: "1,000", 51234.7: "51,235", -2000: "-2,000", math.nan: "nan", -math.inf: "-inf"},
            },
        ),
        (lines_lib.rate, {12345.6: "12,346", 99.4: "99.4", 3.24: "3.24", 0.051: "0.051"}),
        (
            lines_lib.duration,
            {0: "0:00:00", 59.6: "0:01:00", 3723: "1:02:03", 360000: "100:00:00", -1: "0:00:00", math.nan: "-:--:--"},
        ),
    ],
)
def test_numbers_have_four_digits(form, texts):
    assert {value: form(value) for value in texts} == texts


def test_the_environment_tells_versions_commit_and_the_callers_facts(tmp_path, monkeypatch):
    monkeypatch.setattr(run_info, "DISTRIBUTIONS", ("numpy", "no-such-package"))
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    assert run_info.git_state("/") is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (repository / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "first"], ["rev-parse", "HEAD"]):
        commit = subprocess.check_output(["git", *command], text=True).strip()
    run_info.write_environment(tmp_path, {"workers": ["a", "b"], "num_replicas": 4, "bound": math.inf})
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["git"] == {"commit": commit, "changed": False}
    assert (facts["workers"], facts["num_replicas"], facts["bound"]) == (["a", "b"], 4, None)
    assert facts["versions"] == {"numpy": np.__version__}
    assert facts["command"][0] == sys.executable and facts["directory"] == str(repository)
    (repository / "file").write_text("2")
    changed = run_info.git_state(".")
    assert changed == {"commit": commit, "changed": True, "diff": changed["diff"]} and len(changed["diff"]) == 16
    (repository / "file").write_text("3")
    assert run_info.git_state(".")["diff"] != changed["diff"]


def test_processes_with_the_same_id_replace_a_file_at_the_same_time(tmp_path):
    """Threads in place of the processes of two hosts."""

    def replace(content):
        for _ in range(50):
            files.replace_file(tmp_path / "a.json", content)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(replace, [b"1", b"2", b"3", b"4"]))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_is_replaced_is_the_old_one_for_its_readers(tmp_path):
    files.write_json(tmp_path / "a.json", {"a": 1})
    with open(tmp_path / "a.json") as reading:
        files.write_json(tmp_path / "a.json", {"a": 2})
        assert json.load(reading) == {"a": 1}
    assert files.read_json(tmp_path / "a.json") == {"a": 2}


def test_a_file_that_cannot_be_written_is_named_as_on_a_full_disk(tmp_path):
    """A run on a full disk ended with a stack, and no command said which file it could not write."""
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    with files_limited_to(4096), pytest.raises(OSError, match=r"File too large: '.*/a\.json'") as raised:
        files.replace_file(path, bytes(8192))
    assert user_code.is_user_error(raised.value)
    assert files.read_json(path) == {"a": 1} and [*tmp_path.iterdir()] == [path]
