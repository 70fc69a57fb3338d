"""TensorBoard's pages of a real run, in a browser: what they show, with screenshots."""

import subprocess
import sys

import browser
import launching
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """The address of a TensorBoard that shows a run of two epochs, and a browser."""
    if reason := browser.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("board")
    options = ("--config.train.steps=none", "--config.train.epochs=2", "--config.evaluation.every.epochs=1")
    workdir = folder / "runs" / "digits"
    command = launching.train_command(workdir, *options, "--config.report.tensorboard=true")
    launching.run_all([command], [launching.worker_environment()])
    (port,) = launching.free_ports(1)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", f"--port={port}"]
    with (folder / "tensorboard.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            browser.wait_for(f"http://localhost:{port}/data/runs")
            with browser.opened(folder) as window:
                yield f"http://localhost:{port}", window
        finally:
            server.terminate()
            server.wait()


def test_training_and_evaluation_share_a_chart(board, tmp_path):
    address, window = board
    runs = ("digits/tensorboard/train", "digits/tensorboard/evaluation")
    # A run is in the list, and in the legends of the charts with training and evaluation.
    text = window.show(f"{address}/#timeseries&tagFilter=^(loss%7Caccuracy)$", "accuracy", "loss", *runs * 3)
    window.screenshot(tmp_path / "timeseries.png")
    assert (tmp_path / "timeseries.png").read_bytes().startswith(b"\x89PNG")
    lines = text.splitlines()
    # The legend of a chart names the runs that it shows.
    assert {*runs} <= {*lines[lines.index("loss") :]}


def test_hparams_shows_fields_and_metrics(board, tmp_path):
    address, window = board
    text = window.show(f"{address}/#hparams", "learning_rate.peak", "digits/tensorboard")
    window.screenshot(tmp_path / "hparams.png")
    assert "accuracy" in text and "data.batch_size" in text, text
    assert "cluster.port_base" not in text
