"""A checkpoint is whole or absent, whatever happens while it is written, and is found again."""

import errno
import functools
import io
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import stat
import threading
import time
import types
import weakref
from collections.abc import Iterator

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import topologies
from launching import python, worker_environment
from processes import started, until

from tfdist.checkpoint import async_writer, restore
from tfdist.checkpoint import directory as directory_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.data import cache
from tfdist.report import files

ALONE = types.SimpleNamespace(num_workers=1, is_chief=True)
STATE = {"step": 3, "best": 0.1 + 0.2, "totals": {"loss": 1e-300}}


def arrays_of(step: int) -> dict[str, np.ndarray]:
    """Arrays that tell which step they are of."""
    rng = np.random.default_rng(step)
    odd = [np.nan, -np.inf, -0.0, 1e-40, 3.0e38]
    return {
        "model/kernel": rng.standard_normal((30, 40)).astype(np.float32),
        "model/empty": np.zeros((0, 3), np.float32),
        "optimizer/iterations": np.array(step, np.int64),
        "model/half": rng.standard_normal(7).astype(np.float16),
        "model/brain": np.array([odd, rng.standard_normal(5)]).astype(ml_dtypes.bfloat16),
        "model/flag": np.array(True),
    }


def variables_like(arrays: dict[str, np.ndarray]) -> dict[str, tf.Variable]:
    return {name: tf.Variable(tf.zeros(array.shape, array.dtype)) for name, array in arrays.items()}


def assert_holds(path: pathlib.Path, step: int) -> None:
    """Asserts that the checkpoint at `path` is that of `step`, to the bit."""
    variables = variables_like(arrays_of(step))
    restore.restore(ALONE, checkpoint_format.verify(path), variables)
    for name, array in arrays_of(step).items():
        restored = variables[name].numpy()
        assert restored.dtype == array.dtype and restored.tobytes() == array.tobytes(), name


def best_of(step: int) -> dict:
    """What the state of the loop says of the best step so far."""
    return {"best_step": step, "best": step / 10, "best_of": "accuracy, max"}


def saved(directory: pathlib.Path, *steps: int) -> list[pathlib.Path]:
    return [checkpoint_format.write(directory, step, arrays_of(step), STATE | {"step": step}) for step in steps]


def saver_of(directory: pathlib.Path, *steps: int, log=print, keep=3) -> async_writer.AsyncCheckpointer:
    """A saver that has saved these steps."""
    saver = async_writer.AsyncCheckpointer(directory, keep, log)
    save(saver, *steps)
    return saver


def save(saver: async_writer.AsyncCheckpointer, *steps: int) -> bool:
    for step in steps:
        saver.save(step, functools.partial(arrays_of, step), STATE)
    return saver.wait()


def newest(directory: pathlib.Path) -> tuple[int | None, list[str]]:
    """The step of the newest valid checkpoint, and what was said about others."""
    said = []
    found = checkpoint_format.newest_valid(directory, said.append)
    return (None if found is None else found.step), said


def flip(path: pathlib.Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_written_array_is_read_again_to_the_bit(tmp_path):
    (path,) = saved(tmp_path / "checkpoints", 7)
    assert path.name == "step-00000007"
    assert sorted(file.name for file in path.iterdir()) == ["arrays.npz", "manifest.json"]
    found = checkpoint_format.verify(path)
    assert (found.step, found.path, found.state) == (7, path, STATE | {"step": 7})
    assert_holds(path, 7)
    with np.load(path / "arrays.npz", allow_pickle=False) as plain:  # For anyone, with NumPy alone.
        np.testing.assert_array_equal(plain["model/kernel"], arrays_of(7)["model/kernel"])


def test_the_newest_is_found_among_the_remains_of_killed_writers(tmp_path):
    assert newest(tmp_path / "nowhere") == (None, [])
    with pytest.raises(ValueError, match="No valid checkpoint in"):
        checkpoint_format.find(tmp_path / "nowhere", "newest", print)
    first, second = saved(tmp_path, 99_999_999, 100_000_000)  # Compared as numbers.
    shutil.copytree(second, tmp_path / "step-100000001.writing")
    (tmp_path / "step-100000001.writing" / "manifest.json").unlink()
    shutil.copytree(first, tmp_path / "step-00000008.removing")
    (tmp_path / "best.json.123.tmp").write_text("{")
    assert newest(tmp_path) == (100_000_000, [])


def refuse(monkeypatch, file: pathlib.Path, errors: Iterator[int]) -> None:
    """Makes `open` of a file raise these errors of the operating system, one after another."""
    read = open

    def opened(path, *arguments, **options):
        if str(path) == str(file) and (code := next(errors, 0)):
            raise OSError(code, os.strerror(code))
        return read(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", opened)


def test_a_removed_checkpoint_that_is_still_listed_is_skipped_for_a_newer_one(tmp_path, monkeypatch):
    """A network file system may list names for a while that another host has removed."""
    saved(tmp_path, 9, 12)
    listings = iter([[10, 9], [11, 10, 9], [11, 10, 9]])
    monkeypatch.setattr(directory_lib, "steps", lambda directory: next(listings, [12, 9]))
    monkeypatch.setattr(checkpoint_format, "_LOOK_SECONDS", 0.01)
    assert newest(tmp_path) == (12, [])
    monkeypatch.setattr(directory_lib, "steps", lambda directory: [10, 9])  # For good.
    monkeypatch.setattr(checkpoint_format, "_STALE_SECONDS", 0.1)
    step, said = newest(tmp_path)
    assert step == 9 and len(said) == 1 and "step-00000010 has no manifest.json" in said[0]


@pytest.mark.parametrize("file", ["manifest.json", "arrays.npz"])
def test_a_checkpoint_that_the_file_system_does_not_give_is_not_damaged(tmp_path, monkeypatch, file):
    """NFS answered EIO or ESTALE once, and the run went on from the checkpoint before."""
    _, second = saved(tmp_path, 100, 200)
    found = checkpoint_format.verify(second)
    refuse(monkeypatch, second / file, iter([errno.EIO, errno.ESTALE]))
    monkeypatch.setattr(checkpoint_format, "_LOOK_SECONDS", 0.01)
    assert newest(tmp_path) == (200, [])
    refuse(monkeypatch, second / file, itertools.repeat(errno.EIO))
    monkeypatch.setattr(checkpoint_format, "_STALE_SECONDS", 0.1)
    finds = [lambda: newest(tmp_path), lambda: saved(tmp_path, 200)]
    finds += [lambda: dict(checkpoint_format.read(found, found.arrays))] * (file == "arrays.npz")
    for find in finds:
        with pytest.raises(OSError, match="Input/output error") as raised:
            find()
        assert not isinstance(raised.value, checkpoint_format.DamagedCheckpointError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000100", "step-00000200"]


def change_manifest(path: pathlib.Path, change) -> None:
    """`change` makes a new text of that of the manifest."""
    (path / "manifest.json").write_text(change((path / "manifest.json").read_text()))


def without_digest(text: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != "own_sha256"})


# Files that are cut off, empty or garbled: tests/unit/training/test_damaged_workdir.py.
DAMAGES = {
    "flipped": lambda path: flip(path / "arrays.npz", 2000),
    "no arrays": lambda path: (path / "arrays.npz").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "one digit in the manifest": lambda path: change_manifest(path, lambda text: text.replace("1e-300", "2e-300")),
    "no digest of the manifest": lambda path: change_manifest(path, without_digest),
    "another manifest": lambda path: change_manifest(path, lambda text: "[1, 2]"),
    "manifest of another": lambda path: shutil.copy(path.parent / "step-00000001" / "manifest.json", path),
    "another step": lambda path: [shutil.rmtree(path), shutil.copytree(path.parent / "step-00000001", path)],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, damage):
    old, path = saved(tmp_path, 1, 2)
    damage(path)
    step, (said,) = newest(tmp_path)
    assert step == 1
    assert str(path) in said and said.startswith("WARNING: skipped a damaged checkpoint")
    with pytest.raises(checkpoint_format.DamagedCheckpointError, match="step-00000002"):
        checkpoint_format.find(tmp_path, "2", print)
    assert checkpoint_format.find(tmp_path, "newest", print).step == 1
    # The run resumes from the older one, and reaches the step of the damaged one again.
    saved(tmp_path, 2)
    assert newest(tmp_path) == (2, [])
    assert {one.name for one in tmp_path.iterdir()} == {old.name, path.name, f"{path.name}.damaged"}
    assert_holds(path, 2)
    assert_holds(old, 1)


def test_files_that_are_damaged_after_they_were_verified_are_called_damaged(tmp_path):
    (path,) = saved(tmp_path, 1)
    found = checkpoint_format.verify(path)
    whole = (path / "arrays.npz").read_bytes()
    member, entry = whole.index(b"\x93NUMPY"), whole.index(b"PK\x01\x02")
    array = io.BytesIO()
    np.save(array, np.ones(3))
    for content in (
        *(b"", b"PK", whole[: len(whole) // 2], array.getvalue(), b"x" * 100),
        # Another content, another version of zip, an encrypted member.
        *(whole[:at] + b"\xff" + whole[at + 1 :] for at in (member, entry + 6, entry + 8)),
    ):
        (path / "arrays.npz").write_bytes(content)
        with pytest.raises(checkpoint_format.DamagedCheckpointError, match=r"step-00000001/arrays\.npz: "):
            dict(checkpoint_format.read(found, found.arrays))


def test_no_run_begins_anew_over_damaged_checkpoints_or_those_of_a_newer_format(tmp_path):
    for path in saved(tmp_path, 1, 2):
        change_manifest(path, lambda text: json.dumps(json.loads(text) | {"format": 99}))
    said = []
    with pytest.raises(checkpoint_format.DamagedCheckpointError) as raised:
        checkpoint_format.newest_valid(tmp_path, said.append)
    lines = str(raised.value).splitlines()
    assert f"{tmp_path}:" in lines[0] and "--workdir" in lines[-1] and len(lines) == 4 and said == []
    assert all(f"step-0000000{step}" in lines[3 - step] and "format 99" in lines[3 - step] for step in (1, 2))


def test_the_newest_few_and_the_best_are_kept(tmp_path):
    said = []
    saver = saver_of(tmp_path, log=said.append, keep=2)
    for step in range(1, 9):
        saver.save(step, functools.partial(arrays_of, step), STATE | best_of(min(step, 3)))
    assert saver.wait() and said == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("best.json", "step-00000003", "step-00000007", "step-00000008"),
    ]
    assert directory_lib.read_best(tmp_path) == {"step": 3, "metric": "accuracy", "value": 0.3}
    assert checkpoint_format.find(tmp_path, "best", print).step == 3
    assert_holds(tmp_path / "step-00000003", 3)
    (tmp_path / "best.json").write_text('{"step": 3')  # Torn: as if there were none.
    assert directory_lib.read_best(tmp_path) is None


def test_no_checkpoint_is_removed_while_the_file_system_does_not_say_which_stay(tmp_path, monkeypatch):
    saver = saver_of(tmp_path, keep=1)
    saved(tmp_path, 5, 6)
    files.write_json(str(tmp_path / "best.json"), {"step": 5, "metric": "accuracy", "value": 0.5})
    refuse(monkeypatch, tmp_path / "best.json", itertools.repeat(errno.EIO))
    saver._update_directory(6, {})
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint_format.find(tmp_path, "best", print)
    assert directory_lib.steps(tmp_path) == [6, 5]


def test_a_step_that_is_saved_is_not_written_again(tmp_path):
    (path,) = saved(tmp_path, 4)
    saver, moment = saver_of(tmp_path), (path / "arrays.npz").stat().st_mtime_ns
    saver.remove_partial(checkpoint_format.verify(path))
    saved(tmp_path, 4)
    assert save(saver, 4, 6, 6) and (path / "arrays.npz").stat().st_mtime_ns == moment
    assert_holds(tmp_path / "step-00000006", 6)


def test_a_failed_write_is_reported_once_and_leaves_the_others(tmp_path):
    said, workdir = [], tmp_path / "run"
    (checkpoints := workdir / "checkpoints").mkdir(parents=True)
    saver = saver_of(checkpoints, 1, log=said.append)
    (checkpoints / "step-00000002.writing").write_text("in the way")
    assert not save(saver, 2) and newest(checkpoints) == (1, [])
    (checkpoints / "step-00000002.writing").unlink()
    # Not only the disk can fail: what cannot be written at all must not count as saved either.
    saver.save(3, lambda: {"model/x": np.array([object()])}, {"not": {1, 2}})
    assert not saver.wait()
    workdir.rename(tmp_path / "elsewhere")
    assert not save(saver, 4) and not workdir.exists()
    (tmp_path / "elsewhere").rename(workdir)
    assert save(saver, 5) and newest(checkpoints) == (5, []) and len(said) == 3
    assert all(f"step {step} could not be written" in line for step, line in zip((2, 3, 4), said, strict=True))


def test_a_write_whose_thread_dies_is_not_waited_for(tmp_path, monkeypatch):
    """The run waited at its end for ever."""

    def fails(directory: pathlib.Path) -> list[int]:
        raise MemoryError("none left")

    said = []
    saver = saver_of(tmp_path, log=said.append)
    monkeypatch.setattr(directory_lib, "steps", fails)
    assert save(saver, 1) and "none left" in said[0]


def test_files_of_killed_runs_are_removed_by_age_and_files_in_use_stay(tmp_path, monkeypatch):
    stay = {".tfdist-run", "config.json", "tensorboard/train/events.out.tfevents.1.host.1"}
    stay |= {"notes.tmp", "results.2024.tmp", "mine.1.tmp/file"}  # The user's own.
    hour = {".tfdist-0123456789abcdef", ".tfdist-run.0123456789abcdef", ".tfdist-run.77.tmp"}
    hour |= {"metrics.jsonl.77-0a1b2c3d.tmp", "tensorboard/train/events.out.tfevents.1.host.1.77-0a1b2c3d.tmp"}
    hour |= {"checkpoints/best.json.12-0a1b2c3d.tmp", "link.12-0a1b2c3d.tmp"}
    week = {"checkpoints/step-00000002.damaged/arrays.npz"}
    at_once = {"model.writing.keras", "checkpoints/step-00000003.writing/arrays.npz"}
    for name in stay | hour | week | at_once:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to("nowhere") if "link" in name else (tmp_path / name).write_text("")
    now = time.time()
    for age, expected in ((60, stay | hour | week), (2 * 3600, stay | week), (8 * 86400, stay)):
        monkeypatch.setattr(time, "time", lambda age=age: now + age)
        saver_of(tmp_path / "checkpoints").remove_partial(None)
        left = {path for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()}
        assert {str(path.relative_to(tmp_path)) for path in left} == expected


def test_old_checkpoints_of_a_killed_run_are_removed_at_the_next_start(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, 5)
    (tmp_path / "best.json").write_text('{"step')  # The state names the best as well.
    newest = checkpoint_format.write(tmp_path, 6, arrays_of(6), {"best_step": 2})
    saver_of(tmp_path, keep=2).remove_partial(checkpoint_format.verify(newest))
    assert directory_lib.steps(tmp_path) == [6, 5, 2]


def test_a_file_system_without_fsync_of_directories_holds_checkpoints(tmp_path, monkeypatch):
    """CIFS and some file systems of FUSE answer with EINVAL: the checkpoint was complete, and counted as failed."""
    sync, refused = os.fsync, []

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    said = []
    saver_of(tmp_path, 1, log=said.append)
    assert said == [] and refused
    assert_holds(directory_lib.step_path(tmp_path, 1), 1)


@pytest.fixture
def fast(monkeypatch):
    """The disk is slow until this event is set; a save waits for 0.1 s."""
    event, sync = threading.Event(), os.fsync
    monkeypatch.setattr(async_writer, "_MAX_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(os, "fsync", lambda file: (event.wait(60), sync(file)))
    return event


def test_a_slow_file_system_skips_checkpoints_but_not_the_last_one(tmp_path, fast):
    said = []
    saver = saver_of(tmp_path, log=said.append, keep=5)
    for step in (1, 2, 3):
        saver.save(step, functools.partial(arrays_of, step), STATE | best_of(step))
    assert len(said) == 1 and f"{tmp_path} is slow" in said[0] and "skipped the checkpoint of step 2" in said[0]
    threading.Timer(0.5, fast.set).start()
    assert saver.wait() and "waiting for the checkpoint of step 3" in said[1] and len(said) == 2
    assert directory_lib.steps(tmp_path) == [3, 1]
    assert directory_lib.read_best(tmp_path) == {"step": 3, "metric": "accuracy", "value": 3 / 10}
    for step in (1, 3):
        assert_holds(directory_lib.step_path(tmp_path, step), step)


def test_a_slow_file_system_has_two_copies_in_memory_and_not_three(tmp_path, fast):
    saver, copies, alive = saver_of(tmp_path), [], []

    def snapshot(step: int) -> dict[str, np.ndarray]:
        array = np.full(10, step)
        copies.append(weakref.ref(array))
        alive.append(sum(copy() is not None for copy in copies))
        return {"model/x": array}

    for step in (1, 2, 3, 4):
        saver.save(step, functools.partial(snapshot, step), STATE)
    fast.set()
    assert saver.wait()
    saver.save(4, functools.partial(snapshot, 4), STATE)  # Saved already: no copy.
    saver.save(5, functools.partial(snapshot, 5), STATE)
    assert saver.wait()
    assert alive == [1, 2, 2, 2, 1]


def test_layers_that_keras_has_numbered_otherwise_get_their_values(tmp_path):
    before = {f"model/dense_{index}/kernel_{index}": np.full([3], index, np.float32) for index in (1, 2)}
    written = checkpoint_format.verify(checkpoint_format.write(tmp_path / "numbered", 1, before, {}))
    for first in (0, 2, 8, 9):
        names = [f"model/dense_{index}/kernel_{index}" for index in (first, first + 1)]
        variables = variables_like(dict(zip(names, before.values(), strict=True)))
        restore.restore(ALONE, written, variables)
        assert [float(one.numpy()[0]) for one in variables.values()] == [1.0, 2.0], names


def test_the_checkpoint_of_another_model_is_refused_by_names_and_shapes(tmp_path):
    (path,) = saved(tmp_path, 1)
    variables = variables_like(arrays_of(1))
    del variables["model/half"]
    variables["model/kernel"] = tf.Variable(tf.zeros([30, 50]))
    variables["model/brain"] = tf.Variable(tf.zeros([2, 5], tf.float32))
    variables["model/another"] = tf.Variable(0.0)
    with pytest.raises(ValueError, match="another model, optimizer or Keras release") as raised:
        restore.restore(ALONE, checkpoint_format.verify(path), variables)
    assert sorted(line.strip() for line in str(raised.value).splitlines()[1:]) == [
        "model/another is missing in the checkpoint",
        "model/brain is bfloat16[2, 5] in the checkpoint, float32[2, 5] here",
        "model/half is not in this model",
        "model/kernel is float32[30, 40] in the checkpoint, float32[30, 50] here",
    ]
    assert variables["optimizer/iterations"].numpy() == 0  # Refused before anything was assigned.


class Namesakes(keras.Model):
    """Layers of one name, in a list and in a dict."""

    def __init__(self):
        super().__init__(name="namesakes")
        self.some = [keras.layers.Dense(3, name="same"), keras.layers.Dropout(0.5)]
        self.others = {"last": keras.layers.Dense(3, name="same")}

    def call(self, inputs):
        return self.others["last"](self.some[1](self.some[0](inputs)))


def test_every_variable_of_model_and_optimizer_has_a_name_of_its_own():
    model, optimizer = Namesakes(), keras.optimizers.Adam()
    model(np.zeros((1, 3), np.float32))
    optimizer.build(model.trainable_variables)
    named = checkpoint_format.named_variables(model, optimizer, {"more": tf.Variable(0.0)})
    assert {id(v) for v in (*model.variables, *optimizer.variables)} < {id(v) for v in named.values()}
    # Two kernels, two biases, the generator's state; for each weight two slots; iterations, learning rate; more.
    assert len(named) == 5 + 8 + 2 + 1
    kernels = sorted(name for name in named if name.startswith("model") and "kernel" in name)
    assert len(kernels) == 2 and kernels[1] == kernels[0] + "#2"


RENAMES = """
import itertools, json, os, pathlib, signal, sys
import numpy as np
from tfdist.checkpoint import async_writer
from tfdist.checkpoint import format as checkpoint_format

folder, replace = pathlib.Path(sys.argv[1]), os.replace

def save(directory, found, kill_at, after):
    calls = itertools.count(1)

    def rename(*paths):
        call = next(calls)
        if call == kill_at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)
        if call == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = rename
    saver = async_writer.AsyncCheckpointer(directory, 1, print)
    saver.remove_partial(found)
    for step in (2, 3):
        saver.save(step, lambda: {"x": np.full(9, step)}, {"step": step})
        assert saver.wait()

ended = set()
for (case, after), kill_at in itertools.product((("new", False), ("damaged", True), ("valid", False)), range(1, 10)):
    directory = folder / f"{case}{kill_at}"
    if case in ended:  # There are fewer renames.
        continue
    directory.mkdir()
    for step in (1, 2)[: 1 + (case != "new")]:
        path = checkpoint_format.write(directory, step, {"x": np.full(9, step)}, {"step": step})
    if case == "damaged":
        (path / "manifest.json").write_text("{")
    found = checkpoint_format.verify(directory / "step-00000001")
    pid = os.fork()
    if pid == 0:
        try:
            save(directory, found, kill_at, after)
        finally:
            os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        ended.add(case)
        continue
    manifests = [path.read_text() for path in directory.glob("step-*/manifest.json")]  # Written last.
    complete = [json.loads(text)["step"] for text in manifests if text != "{"]
    found = checkpoint_format.newest_valid(directory, lambda text: None, holds_lock=True)
    assert found.step == max(complete), (directory.name, found, complete)
    print(directory.name, *complete)
"""


def test_a_writer_killed_at_any_rename_loses_nothing_that_is_complete(tmp_path):
    assert len(python("-c", RENAMES, tmp_path).stdout.splitlines()) > 10


@pytest.mark.workers
def test_a_full_disk_loses_nothing_and_training_continues(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    command = topologies.command(tmp_path, "--config.checkpoint.keep=30", config="tests/configs/interrupted.py")
    with started([command], [worker_environment()], text=True) as (process,):
        until((checkpoints / "step-00000008").exists, 60, pause=0.005)
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        size = (checkpoints / "step-00000008" / "arrays.npz").stat().st_size
        # From here on no file can grow beyond half a checkpoint, as on a disk with so much room.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size // 2, limits[1]))
        output = []
        while not output or "WARNING" not in output[-1]:
            output.append(process.stdout.readline())
            assert output[-1], "".join(output)
        # Somebody made room again.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
        output += process.stdout.readlines()
        assert process.wait(timeout=60) == 0, "".join(output)
    warnings = [line for line in output if "WARNING" in line]
    pattern = r"tfdist: worker 0: WARNING: the checkpoint of step (\d+) could not be written to .*: (File too large|No)"
    failed = [int(re.match(pattern, line)[1]) for line in warnings]
    assert failed and all("Training continues; the previous checkpoint is untouched." in line for line in warnings)
    steps = sorted(int(path.name[5:]) for path in checkpoints.glob("step-*"))
    assert not set(failed) & set(steps)
    # Saved by an interval, as the best, or as the last.
    assert steps[0] == 8 and steps[-1] == 96 and {*range(8, 97, 8)} <= {*steps, *failed}
    assert [checkpoint_format.verify(directory_lib.step_path(checkpoints, step)).step for step in steps] == steps
    assert [line["step"] for line in topologies.records(tmp_path, "train")] == [*range(5, 96, 5), 96]


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: checkpoint_format.write(folder, 1, {"x": np.zeros(9)}, {}),
        lambda folder: cache.write(folder / "train.npy", iter([{"x": np.zeros(2)}]), 2),
    ],
    ids=["checkpoint", "cache"],
)
def test_what_is_renamed_is_on_disk_before(tmp_path, monkeypatch, write):
    """Else a power failure leaves the name, and files of zeros."""
    synced, replace, fsync = set(), os.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), synced.add(os.fstat(file).st_ino)))
    unsynced = []

    def rename(source, target):
        source = pathlib.Path(source)
        written = [path for path in (source, *source.rglob("*")) if path.is_file()]
        unsynced.extend(path.name for path in written if path.stat().st_ino not in synced)
        replace(source, target)

    monkeypatch.setattr(os, "replace", rename)
    write(tmp_path)
    assert synced and unsynced == []
