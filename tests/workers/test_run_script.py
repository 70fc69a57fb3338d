"""`python -m tfdist.run`: an unchanged Keras script on two workers gives what Keras gives on one device."""

import functools
import http.server
import re
import signal
import sys
import threading
import time

import numpy as np
import processes
import pytest
from launching import REPOSITORY, python, run_all, worker_environment
from parameters import slow
from topologies import environments

SCRIPT = "tests/scripts/unchanged.py"


def run(workdir, out, fail=""):
    """Returns the exit codes and the outputs of two workers."""
    line = [sys.executable, "-m", "tfdist.run", f"--workdir={workdir}", SCRIPT, f"--out={out}", f"--fail={fail}"]
    return processes.run([line] * 2, environments(2), timeout=900.0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The directory of the results, and the exit codes and outputs of a script that is killed and resumed."""
    place = tmp_path_factory.mktemp("script")
    alone = [sys.executable, SCRIPT, f"--out={place / 'keras'}"]
    start = functools.partial(run, place / "workdir", place / "resumed")
    _, killed = processes.at_once(
        lambda: run_all([alone], [worker_environment()], timeout=900.0), lambda: start("killed")
    )
    return place, {"killed": killed, "resumed": start()}


@pytest.fixture(scope="module")
def undisturbed(found):
    """The directory of the results, and the exit codes and outputs, of a script that is not interrupted."""
    place, _ = found
    return place / "tfdist", run(place / "undisturbed", place / "tfdist")


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_weights_and_values_are_those_of_keras_on_one_device(found):
    place, _ = found
    expected, ours = (arrays(place / how / "weights.npz") for how in ("keras", "resumed"))
    assert expected.keys() == ours.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-5, err_msg=name)
    numbers = [re.findall(r"\d+\.\d+", (place / how / "losses.txt").read_text()) for how in ("keras", "resumed")]
    np.testing.assert_allclose(*[np.array(values, float) for values in numbers], rtol=0, atol=1e-5)


def test_only_the_chief_prints(found):
    _, starts = found
    check_output(starts["resumed"])
    # One line per epoch by the callback of the first fit.
    for name, lines in (("killed", 2), ("resumed", 0)):
        assert len(re.findall(r"^epoch \d: \(2, 2\)", starts[name][1][0], re.MULTILINE)) == lines


def check_output(done):
    codes, (chief, other) = done
    assert codes == [0, 0], chief + other
    assert "steps 12" in chief and "steps" not in other and "epoch" not in other


def test_both_workers_may_be_killed_in_an_epoch(found):
    codes = found[1]["killed"][0]
    assert -signal.SIGKILL in codes and {*codes} <= {-signal.SIGKILL, 76}  # One may notice before its own end.


@pytest.mark.slow
def test_a_script_that_was_killed_and_started_again_ends_with_the_same_bits(found, undisturbed):
    place, (_, done) = found[0], undisturbed
    check_output(done)
    assert len(re.findall(r"^epoch \d: \(2, 2\)", done[1][0], re.MULTILINE)) == 2
    expected, ours = (arrays(place / how / "weights.npz") for how in ("tfdist", "resumed"))
    assert expected.keys() == ours.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert (place / "tfdist" / "losses.txt").read_text() == (place / "resumed" / "losses.txt").read_text()


def resumed(workdir, fit):
    """How often a fit was resumed, and whether that was at its end."""
    assert (workdir / fit / "finished.json").exists()
    events = (workdir / fit / "metrics.jsonl").read_text()
    return events.count("resumed from"), "the end of the run" in events


def test_each_fit_is_saved_and_a_finished_one_is_not_run_again(found):
    place, _ = found
    assert [resumed(place / "workdir", fit) for fit in ("fit1", "fit2")] == [(1, True), (1, False)]


@pytest.mark.slow
def test_a_finished_script_trains_nothing(found):
    place, _ = found
    codes, (chief, other) = run(place / "workdir", place / "resumed")
    assert codes == [0, 0] and "steps 12" in chief and "epoch" not in chief + other
    assert [resumed(place / "workdir", fit) for fit in ("fit1", "fit2")] == [(2, True), (2, True)]


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("here", r'Traceback \(most recent call last\):\n  File "tests/scripts/unchanged\.py", line \d+, in <module>'),
        slow("connect", r"calls tfdist\.connect, which tfdist\.run has done already"),
    ],
)
def test_errors_show_the_script(tmp_path, fail, words):
    done = python("-m", "tfdist.run", SCRIPT, f"--out={tmp_path / 'out'}", f"--fail={fail}", code=1)
    assert re.search(words, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], r"required: SCRIPT\.py"),
        (["missing.py"], r"there is no file missing\.py"),
        ([SCRIPT.removesuffix(".py")], r"there is no file .*\. Did you mean \S+\.py\?"),
        (["--logical_devices=two", SCRIPT], r"--logical_devices: .* at least 1\. Received: 'two'"),
        (["--epochs=3", SCRIPT], r"there is no flag --epochs\. Flags of the script follow its name"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, words):
    done = python("-m", "tfdist.run", *arguments, code=1)
    assert re.search(words, done.stderr), done.stderr


@pytest.mark.parametrize("workers", [1, slow(2)])
def test_a_mistake_in_a_script_that_connects_is_one_message_with_its_place(tmp_path, workers):
    script = tmp_path / "script.py"
    script.write_text("import tfdist\n\ncluster = tfdist.connect()\ntfdist.fit(cluster, None, [1])\n")
    codes, outputs = processes.run([[sys.executable, str(script)]] * workers, environments(workers), timeout=900.0)
    words = r"tfdist: (worker \d: )?tfdist\.fit\(.*\): `model` .*: NoneType\n  Called at .*script\.py, line 4, .*\n"
    # With several workers, the others may report that one has failed.
    assert 1 in codes and any(re.fullmatch(words, output) for output in outputs), outputs
    assert not any("Traceback" in output for output in outputs), outputs


def test_a_connection_after_operations_of_tensorflow_names_the_call_to_move(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import tensorflow as tf, tfdist\n\ntf.constant(1.0)\ntfdist.connect()\n")
    codes, outputs = processes.run([[sys.executable, str(script)]] * 2, environments(2))
    words = r"tfdist\.connect\(\) must come before .*tf\.constant"
    assert 1 in codes and any(re.search(words, output) for output in outputs), outputs


WRONG = """import sys, keras, numpy as np

if "--all" in sys.argv:
    keras.config.disable_traceback_filtering()

class Wrong(keras.layers.Layer):
    def call(self, x):
        return keras.ops.matmul(x, keras.ops.ones((5, 2)))  # x has 4 columns.

model = keras.Sequential([Wrong()])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.zeros((8, 4)), np.zeros((8, 2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--all"]])
def test_a_shape_error_names_the_line_of_the_layer_on_one_worker(tmp_path, flags):
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    line = [sys.executable, "-m", "tfdist.run", str(script), *flags]
    codes, outputs = processes.run([line] * 2, environments(2), timeout=900.0)
    assert 1 in codes and set(codes) <= {1, 76}, outputs
    place = 'wrong.py", line 8, in call'
    chief, other = outputs
    assert place in chief and "Traceback" in chief, chief
    assert place not in other and "Traceback" not in other and other.count("\n") == 1, other
    assert ("keras/src/utils/traceback_utils.py" in chief and "return fn(*args, **kwargs)" in chief) == bool(flags)


# A library that skips the trials that it has finished, and a script that is killed in its third.
SEARCH = """
import json, os, pathlib

def search(build, trials, fit):
    scores = []
    for number in range(trials):
        file = pathlib.Path(f"trial{number}.json")
        if not file.exists():
            file.write_text(json.dumps(fit(build(number), number)))
        scores.append(json.loads(file.read_text()))
    return scores
"""
SEARCHES = """
import os, keras, keras_tuner, numpy as np
x = np.random.default_rng(0).random((24, 3)).astype("float32")

class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and "KILLED" in os.environ:
            os.kill(os.getpid(), 9)

def build(number):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01 * 2**number), "mse")
    return model

def fit(model, number):
    kill = [Kill()] if number == 2 else []
    history = model.fit(x, x[:, :1], epochs=3, batch_size=8, shuffle=False, verbose=0, callbacks=kill)
    return history.history["loss"][-1]

print("scores", keras_tuner.search(build, 4, fit))
"""


# As a data set of Keras, in a file of Keras.
DOWNLOADS = """
import sys
from keras.src.datasets import mnist
code = "def load(): return get_file('data.bin', origin=sys.argv[1], cache_dir='.')"
found = vars(mnist) | {"sys": sys}
exec(compile(code, mnist.__file__, "exec"), found)
sys.stderr.write(f"bytes {len(open(found['load'](), 'rb').read())}")
"""


@pytest.fixture
def server():
    """The address of a file on a slow server, and the paths that were asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "5000")
            self.end_headers()
            for _ in range(5):
                self.wfile.write(bytes(1000))
                time.sleep(0.1)

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://localhost:{found.server_port}/data.bin", asked
        found.shutdown()


def test_a_data_set_of_keras_is_downloaded_by_one_worker(tmp_path, server):
    address, asked = server
    (tmp_path / "script.py").write_text(DOWNLOADS)
    command = [sys.executable, "-m", "tfdist.run", "script.py", address]
    codes, outputs = processes.run([command] * 2, environments(2), cwd=tmp_path)
    assert codes == [0, 0] and all("bytes 5000" in output for output in outputs), outputs
    assert asked == ["/data.bin"]


@pytest.mark.slow
def test_a_search_that_skips_finished_trials_takes_no_other_trials_checkpoint(tmp_path):
    scores = []
    for way, starts in (("plain", [{}]), ("ours", [{"KILLED": "1"}, {}])):
        place = tmp_path / way
        place.mkdir()
        (place / "keras_tuner.py").write_text(SEARCH)
        (place / "script.py").write_text(SEARCHES)
        tool = [] if way == "plain" else ["-m", "tfdist.run", "--workdir=w"]
        for number, more in enumerate(starts):
            env = worker_environment(**more, PYTHONPATH=str(REPOSITORY))
            codes, (output,) = processes.run([[sys.executable, *tool, "script.py"]], [env], timeout=300.0, cwd=place)
            assert codes == [0 if number == len(starts) - 1 else -signal.SIGKILL], output
        scores.append([float(one) for one in re.search(r"scores \[(.*)\]", output)[1].split(", ")])
    np.testing.assert_allclose(*scores, rtol=1e-5)
