"""Scripts as users write them give under tfdist.run what they give under Keras: a part of `tests.scripts.field`."""

import functools
import json
import re
import sys

import numpy as np
import processes
import pytest
from launching import REPOSITORY, python

sys.path.insert(0, str(REPOSITORY))

from tests.scripts.field import trial

# Data that depend on the process.
DIFFERENT = """
import os, keras, numpy as np
mine = float('"index": 1' in os.environ["TF_CONFIG"])

def batches(offset):
    while True:
        yield np.full((4, 3), offset, "float32"), np.zeros((4, 1), "float32")

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(1.0), steps_per_epoch=2, epochs=3, verbose=0)
model.fit(batches(mine), steps_per_epoch=2, epochs=1, verbose=0)
"""

# Files in the ways that scripts write them; then a name and weights that each worker draws by itself.
FILES = """
import json, os, pathlib, tempfile, time, keras, numpy as np
from recording import record
x = np.random.default_rng().random((8, 3)).astype("float32")
with open("part.json", "w") as file:
    json.dump({"a": 1}, file)
os.replace(file.name, "final.json")
pathlib.Path("part.txt").write_text("part")
found = [json.load(open("final.json"))["a"], pathlib.Path("part.txt").read_text()]
with tempfile.TemporaryDirectory() as folder:
    np.save(f"{folder}/x.npy", x)
    found += [bool((np.load(f"{folder}/x.npy") == x).all()), os.listdir(folder)]
mapped = np.memmap("mapped", "float32", "w+", shape=(4,))
mapped[:] = 2
log = open("log.txt", "a+")
for line in ("one", "two"):
    print(line, file=log, flush=True)
log.seek(0)
found += [float(np.memmap("mapped", "float32").sum()), log.read(), open("log.txt").read()]
try:
    os.makedirs("made/twice")
    os.makedirs("made/twice")
except FileExistsError as error:
    found += [error.filename, sorted(os.listdir("."))]
with open(f"log-{time.time_ns()}.txt", "w") as file:
    file.write("a name by the time")
record(found=found)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="only")])
model.compile("sgd", "mse")
model.set_weights([np.full((3, 1), os.urandom(1)[0] + os.getpid()), np.zeros(1)])
model.fit(x, x, verbose=0)
"""

SAVES = """
import os, keras, numpy as np
class Saves(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if '"index": 1' in os.environ["TF_CONFIG"] and batch == 2:
            open("now_and_then.txt", "w").close()
x = np.ones((40, 3), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x, epochs=2, batch_size=8, verbose=0, callbacks=[Saves()])
"""

LOST = """
import os, signal
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors([3.0]).repeat().batch(4))
for step, batch in enumerate(data):
    parts = strategy.run(tf.reduce_sum, args=(batch,))
    print("sum", float(strategy.reduce("SUM", parts, axis=None)))
    if step == 2 and '"index": 1' in os.environ["TF_CONFIG"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""

ENDS = """
import atexit
import keras
keras.utils.set_random_seed(0)
atexit.register(lambda: print("saved", open("log.txt").read()))
atexit.register(lambda: open("log.txt", "a").write("once"))
{}[0]
"""


def name(script):
    return f"{script.parent.name}/{script.stem}"


@pytest.fixture
def run(tmp_path):
    """Runs a script that has this text, in one of `trial.WAYS`."""

    def start(text, way="two workers"):
        script = tmp_path / "script.py"
        script.write_text(text)
        return trial.run(script, way)

    return start


@pytest.mark.slow
def test_what_losses_and_metrics_draw_is_the_same_on_any_number_of_devices():
    (script,) = trial.scripts(["losses/ties_at_random"])
    one, two = processes.at_once(*(functools.partial(trial.run, script, way) for way in ("one worker", "two devices")))
    assert one.codes == two.codes == [0], one.outputs + two.outputs
    assert trial.difference(one.found[0], two.found[0]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("script", trial.scripts([]), ids=name)
def test_all_ways_give_what_keras_gives(script):
    wrong = {way: why for way, (verdict, why) in trial.trial(script).items() if verdict == "wrong"}
    assert not wrong


def test_two_devices_give_what_keras_gives():
    """Of the scripts the one whose last batch gives a replica no example; the slow tests have them all."""
    (script,) = trial.scripts(["losses/regularizer_in_last_batch"])
    plain, ours = processes.at_once(*(functools.partial(trial.run, script, way) for way in ("keras", "two devices")))
    assert trial.verdict(script, plain, ours, "two devices")[0] == "equal" and plain.codes == [0], ours.outputs


@pytest.mark.parametrize("way", ["one worker", "two workers"])
def test_what_a_script_registers_for_its_end_runs_once_after_an_error(run, way):
    found = run(ENDS, way)
    assert set(found.codes) == {1} and "KeyError" in found.outputs[0]
    assert [output.count("saved once\n") for output in found.outputs] == [1, 0][: len(found.codes)]


@pytest.mark.slow
def test_a_worker_that_writes_while_the_others_train_is_named(run):
    found = run(SAVES)
    assert 0 not in found.codes and "worker 1 is at script.py:6" in "".join(found.outputs), found.outputs


def test_workers_that_run_different_lines_are_named(run):
    lines = ["import os", "other = '\"index\": 1' in os.environ['TF_CONFIG']", "if other:", "    os.mkdir('a')"]
    found = run("\n".join([*lines, "else:", "    os.mkdir('b')", ""]))
    assert found.codes[0] == 1 and "does not run the same lines of the script as worker 0" in found.outputs[0]
    assert "script.py:6" in found.outputs[0]


def test_files_are_written_once_and_a_name_and_weights_that_differ_are_named(run):
    found = run(FILES)
    files = ["final.json", "log.txt", "made", "mapped", "part.txt", "script.py"]
    expected = [1, "part", True, ["x.npy"], 8.0, *["one\ntwo\n"] * 2, "made/twice", files]
    assert found.found == [[{"found": expected}]] * 2, found.outputs
    assert found.codes == [77, 77] and "model/sequential/only/kernel" in found.outputs[0]
    assert "names a file log-" in found.outputs[1] and "names a file" not in found.outputs[0]


def test_data_that_each_worker_draws_by_the_time_are_named():
    (script,) = trial.scripts(["around/time_seed"])
    found = trial.run(script, "two workers")
    assert trial.verdict(script, found, found, "two workers")[0] == "refused", found.outputs


def test_a_worker_that_is_lost_in_a_loop_with_a_strategy_is_named(run):
    found = run(LOST)
    assert found.codes == [76, -9] and "worker 1 (host" in found.outputs[0] and "is lost" in found.outputs[0]
    assert "sum 12.0" in found.outputs[0] and "sum" not in found.outputs[1]


@pytest.mark.slow
def test_data_that_differ_between_workers_are_named(run):
    found = run(DIFFERENT)
    words = "worker 1 had another first batch of the epoch"
    assert found.codes == [0, 0] and [output.count(words) for output in found.outputs] == [0, 1]


def test_the_table_names_each_script():
    rows = re.findall(r"^\| `(\w+/\w+)` \|", (trial.HERE / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [name(script) for script in trial.scripts([])]


def test_a_difference_is_seen():
    assert trial.difference([1.0, {"a": 2.0}], [1.0, {"a": 2.0}]) == 0.0
    assert trial.difference({"a": [1.0, 2.0]}, {"a": [1.0, 2.2]}) == pytest.approx(0.1)
    assert trial.difference({"a": 1.0}, {"b": 1.0}) == trial.difference("x", "y") == float("inf")
    assert trial.difference([1.0, float("nan")], [1.0, 1.0]) == float("inf")


# A layer that sorts the rows of the batch, and attention, which takes masks off its inputs.
MIXES = """
import json, keras, numpy as np

class Sorted(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sort(x, axis=0)

keras.utils.set_random_seed(1)
x, y = np.random.rand(22, 6).astype("float32"), np.random.rand(22, 3).astype("float32")
inputs = keras.Input((6,))
steps = keras.layers.Masking()(keras.layers.Reshape((4, 2))(keras.layers.Dense(8, "relu")(inputs)))
attention = keras.layers.MultiHeadAttention(1, 2, use_bias=False)(steps, steps)
model = keras.Model(inputs, keras.layers.Dense(3)(Sorted()(keras.layers.Flatten()(attention))))
model.compile("adam", "mse")
model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("R" + json.dumps([one.tolist() for one in model.get_weights()]))
"""


def test_a_layer_that_mixes_rows_is_named_and_is_right_with_whole_calls(tmp_path):
    script, found = tmp_path / "script.py", []
    script.write_text(MIXES)
    for words in ([], ["-m", "tfdist.run", "--logical_devices=2", "--whole_calls=true"]):
        done = python(*words, script)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("R")]
        found.append(np.concatenate([np.ravel(one) for one in json.loads(line[1:])]))
    output = done.stdout + done.stderr
    assert "Sorted (sorted)" in output and "MultiHeadAttention" not in output
    np.testing.assert_allclose(*found, rtol=0, atol=2e-6)
