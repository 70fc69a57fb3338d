"""`tfdist lr_range`: what a range test of learning rates suggests, for a config and for scripts."""

import json
import math
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from launching import REPOSITORY, worker_environment

from tfdist import config as c
from tfdist.tools.many_runs import lr_range

RATES = list(np.geomspace(1e-6, 10, 200))


@pytest.mark.unit
def test_the_suggestion_is_below_the_smallest_loss_and_above_what_diverges():
    def loss(rate):
        return 1 + (math.log10(rate) + 2) ** 2 / 4 + (math.exp(40 * rate) if rate < 1 else math.nan)

    found = lr_range.smooth([(rate, loss(rate)) for rate in RATES])
    best = min(RATES[:170], key=loss)
    assert found.rates[-1] < 0.2 and 0.8 < found.lowest_at / best < 1.25  # The mean of 11 steps.
    assert found.suggestion == pytest.approx(found.lowest_at / 10, rel=0.05)
    assert found.peak == pytest.approx(found.lowest_at / 2, rel=0.05)
    below = lr_range.smooth([(rate, loss(rate) - 20) for rate in RATES])
    assert below.rates[-1] < 0.2 and below.lowest_at == found.lowest_at
    stopped = lr_range.smooth([(rate, 2.0 if rate < 1e-3 else None) for rate in RATES])
    assert stopped.rates[-1] < 1e-3
    with pytest.raises(ValueError, match="a smaller --lowest"):
        lr_range.smooth([(rate, None) for rate in RATES])


@pytest.mark.unit
def test_the_suggested_field_is_that_of_the_config(tmp_path, capsys):
    found = lr_range.smooth([(rate, (math.log10(rate) + 2) ** 2) for rate in RATES])
    for more, field in (
        ({"learning_rate": c.LearningRate(peak=0.1)}, "learning_rate.peak"),
        ({"optimizer": {"target": "keras.optimizers:SGD", "learning_rate": 0.1}}, "optimizer.learning_rate"),
    ):
        config = c.Config(model={"target": "x:y"}, train=c.Train(steps=1), **more)
        lr_range.show(found, tmp_path, "mine", config)
        assert f"Suggestion: --config.{field}=" in capsys.readouterr().out


@pytest.mark.unit
@pytest.mark.parametrize("end, whole", [("lost", False), ("stopped", False), ("diverged", True)])
def test_a_training_that_was_killed_suggests_nothing(tmp_path, monkeypatch, capsys, end, whole):
    def run(command, log, fresh):
        fresh.mkdir(parents=True)
        lines = [{"kind": "train", "step": i, "learning_rate": 1e-6 * 1.1**i, "loss": 3.0 - i / 100} for i in range(50)]
        (fresh / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        start = {"start": 1.0, "now": 2.0, "step": 50, "seconds": {}, "end": end}
        (fresh / "starts.jsonl").write_text(json.dumps(start) + "\n")
        log.write_text("Killed\n")
        return -9

    monkeypatch.setattr(lr_range.child_runs, "run_command", run)
    monkeypatch.setattr(lr_range.config_flags, "config_name", lambda: "mine")
    config = c.Config(model={"target": "x:y"}, train=c.Train(steps=1))
    given = mock.MagicMock(lowest=1e-6, highest=10.0, steps=200, script=None, workdir=str(tmp_path))
    given.__getitem__.return_value.value = config
    monkeypatch.setattr(lr_range.flags, "FLAGS", given)
    if whole:
        lr_range.main(["lr_range"])
        assert "Suggestion: " in capsys.readouterr().out
    else:
        with pytest.raises(ValueError, match=r"exited with code -9; the end of .*run\.log:\n  Killed"):
            lr_range.main(["lr_range"])


SCRIPT = """
import sys
import keras
import numpy as np
import tfdist
x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
def build():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5) if "schedule" in sys.argv else 0.1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(rate), loss=loss)
    return model
if "fit" in sys.argv:
    cluster = tfdist.connect()
    with cluster.scope():
        model = build()
    tfdist.fit(cluster, model, x, y, epochs=2, batch_size=32, workdir="its_own")
else:
    build().fit(x, y, epochs=1, batch_size=32, verbose=0, validation_split=0.1)
raise SystemExit("the rest of the script is not run")
"""


def command(tmp_path, *words, code=0):
    given = [sys.executable, "-m", "tfdist", "lr_range", *words, f"--workdir={tmp_path}/lr"]
    env = worker_environment() | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(given, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keras", "schedule", "fit"])
def test_a_script(tmp_path, kind):
    (tmp_path / "my_script.py").write_text(SCRIPT)
    printed = command(tmp_path, f"--script=my_script.py {kind}", "--steps=120", "--highest=1e4")
    assert "Suggestion: a learning rate of " in printed
    table = np.loadtxt(tmp_path / "lr" / "lr_range.csv", delimiter=",", skiprows=1)
    rates, losses = table[:, 0], table[:, 1]
    np.testing.assert_allclose(rates[1:] / rates[:-1], (1e4 / 1e-6) ** (1 / 119), rtol=1e-5)
    # Hardly anything is learned at first; then the loss falls.
    assert abs(losses[0] - losses[:10].mean()) < 0.5 and losses.min() < 0.5 * losses[:10].mean()
    assert not (tmp_path / "its_own").exists()


@pytest.mark.slow
def test_a_config(tmp_path):
    printed = command(tmp_path, "--config=digits", "--steps=100", "--config.learning_rate.scaling=linear")
    assert (
        "Suggestion: --config.learning_rate.peak=" in printed and "(x 0.25 by config.learning_rate.scaling)" in printed
    )
    pytest.importorskip("matplotlib")
    assert (tmp_path / "lr" / "lr_range.png").stat().st_size > 10_000
    assert "is smallest at a rate of 0.0" in command(tmp_path, "--config=digits", "--steps=100")
    assert "below --highest" in command(tmp_path, "--config=digits", "--lowest=2", "--highest=1", code=1)
    (tmp_path / "broken.py").write_text("raise OSError('no data here')\n")
    assert "no data here" in command(tmp_path, "--script=broken.py", code=1)
