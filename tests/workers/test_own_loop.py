"""`tfdist.step` and `tfdist.batches`: loops of one's own give on several replicas what they give alone."""

import json
import signal
import sys

import processes
import pytest
from launching import REPOSITORY, worker_environment
from parameters import slow_except
from topologies import environments

sys.path.insert(0, str(REPOSITORY))

from tests.scripts.field import trial
from tfdist.keras_fit.own_step import own_loop

# The step, of four in a pass, in which a start is killed.
KILLED = 10
LOOPS = ("classifier", "gan", "policy", "autoencoder", "mean_teacher")


def run(place, name, *words, workers=1, devices=1, plain=False):
    """Exit codes, output, and what each process has recorded."""
    place.mkdir(exist_ok=True)
    script = [str(REPOSITORY / "tests/scripts/loops" / f"{name}.py"), *words]
    tool = [] if plain else ["-m", "tfdist.run", f"--logical_devices={devices}"]
    command = [sys.executable, *tool, *script, *(["--plain"] if plain else [])]
    each = environments(workers) if workers > 1 else [worker_environment()]
    paths = f"{REPOSITORY}:{REPOSITORY / 'tests/scripts'}"
    each = [{**env, "PYTHONPATH": paths, "FIELD_OUT": str(place / f"out{rank}")} for rank, env in enumerate(each)]
    codes, outputs = processes.run([command] * workers, each, timeout=600.0, cwd=place)
    files = sorted(place.glob("out*.jsonl"))
    found = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return codes, "\n".join(outputs), found


ROWS = [*((name, "workers") for name in LOOPS), ("classifier", "devices")]


@pytest.mark.parametrize(("name", "replicas"), slow_except(ROWS, [("classifier", "devices")]))
def test_two_replicas_make_the_steps_of_one_process_without_tfdist(tmp_path, name, replicas):
    (_, _, (expected,)), (codes, output, found) = processes.at_once(
        lambda: run(tmp_path / "plain", name, plain=True), lambda: run(tmp_path / "ours", name, **{replicas: 2})
    )
    assert not any(codes) and len(found) == len(codes) == (2 if replicas == "workers" else 1), output
    assert max(trial.difference(expected, one) for one in found) < 2e-5


@pytest.mark.slow
def test_a_loop_that_saves_itself_resumes_after_a_kill_to_the_same_bits(tmp_path):
    place = tmp_path / "resumed"
    (_, output, wholes), (codes, killed, found) = processes.at_once(
        lambda: run(tmp_path / "whole", "classifier", "--saves=saved", workers=2),
        lambda: run(place, "classifier", "--saves=saved", f"--fail_at={KILLED}", workers=2),
    )
    assert [len(whole["losses"]) for whole in wholes] == [12, 12], output
    assert -signal.SIGKILL in codes and 0 not in codes and not found, killed
    codes, output, rests = run(place, "classifier", "--saves=saved", workers=2)
    assert codes == [0, 0] and rests == [
        whole | {"losses": whole["losses"][8:], "accuracies": whole["accuracies"][2:]} for whole in wholes
    ], output


def test_a_method_that_is_decorated_in_its_class_is_refused():
    def train(self, batch):
        return self, batch

    with pytest.raises(ValueError, match=r"self\.train = tfdist\.step\(self\.train\)"):
        own_loop.step(train)


def test_a_loop_without_these_lines_is_told_where_to_read(tmp_path):
    (tmp_path / "loop.py").write_text(
        "import keras, tensorflow as tf\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "optimizer = keras.optimizers.SGD(0.1)\n"
        "with tf.GradientTape() as tape:\n    loss = tf.reduce_mean(model(tf.ones([4, 2])) ** 2)\n"
        "optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)\n"
    )
    command = [sys.executable, "-m", "tfdist.run", "--logical_devices=2", "loop.py"]
    paths = {"PYTHONPATH": str(REPOSITORY)}
    codes, (output,) = processes.run([command], [worker_environment(**paths)], timeout=300.0, cwd=tmp_path)
    assert codes == [0] and output.count("tfdist.step and tfdist.batches distribute it") == 1, output
