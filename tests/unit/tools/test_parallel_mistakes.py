"""The usual mistakes of data-parallel training, by workers in threads, and the command on two worker processes."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from launching import REPOSITORY, worker_environment

from tfdist.configs.laboratory import by_hand, parallel_mistakes
from tfdist.tools.pictures import style

WORKERS = 4


@pytest.fixture(scope="module")
def problem():
    return parallel_mistakes.digits()


def train(problem, recipe, workers=WORKERS):
    """Trains on workers that are threads, and exchange rows through a list."""
    barrier, rows, found = threading.Barrier(workers), [None] * workers, [None] * workers

    def work(rank):
        def gather(row):
            rows[rank] = row
            barrier.wait()
            gathered = np.array(rows)
            barrier.wait()
            return gathered

        found[rank] = by_hand.train(problem, recipe, rank=rank, workers=workers, gather=gather)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_gradient_by_hand_is_the_derivative(problem):
    weights, ids = problem.start(3), np.arange(0, 1400, 100)
    gradient, loss = problem.gradient(weights, ids)
    direction = np.random.default_rng(0).normal(size=len(weights))
    ends = [problem.gradient(weights + shift * direction, ids)[1] for shift in (1e-6, -1e-6)]
    np.testing.assert_allclose(gradient @ direction, (ends[0] - ends[1]) / 2e-6, rtol=1e-5)
    assert loss == pytest.approx(len(ids) * np.log(10), rel=0.5)


@pytest.mark.slow
def test_right_training_equals_one_worker_and_each_mistake_is_worse(problem, tmp_path):
    chosen = parallel_mistakes.recipes(WORKERS, 4, problem.num_examples)
    assert [recipe.name for recipe in chosen] == ["right", *parallel_mistakes.TITLES]
    found = {recipe.name: train(problem, recipe) for recipe in chosen}
    alone = by_hand.train(problem, chosen[0])
    np.testing.assert_allclose(found["right"][3]["weights"], alone["weights"], atol=1e-9)
    table = {row[0]: row[1:] for row in parallel_mistakes.rows(found, chosen, problem.num_examples)}
    right = table["right"]
    assert right[0] > 0.85 and right[2] == 0 and right[3] == 0
    assert table["no broadcast"][2] > 0.1 and table["no average"][2] > 0.1
    assert 0.25 < table["unseeded shuffle"][3] < 0.4
    for name in ("no average", "divided by own batch", "batch then shuffle", "unscaled rate"):
        assert table[name][0] < right[0] - 0.02, (name, table)
    pytest.importorskip("matplotlib")
    tests = {name: [each["test"] for each in workers] for name, workers in found.items()}
    rows = parallel_mistakes.rows(found, chosen, problem.num_examples)
    style.save(tmp_path / "x", lambda: parallel_mistakes.draw(tests, rows, caption="made up"))
    text = (tmp_path / "x.svg").read_text()
    assert all(words in text for words in [*parallel_mistakes.TITLES, "worker 3", "not seen"])


@pytest.mark.slow
def test_parallel_mistakes_trains_on_connected_workers(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tfdist",
        "parallel_mistakes",
        "--workers=2",
        "--epochs=1",
        f"--workdir={tmp_path}",
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ["right", *parallel_mistakes.TITLES])
    with (
        np.load(tmp_path / "workers" / "right-0.npz") as first,
        np.load(tmp_path / "workers" / "right-1.npz") as second,
    ):
        np.testing.assert_array_equal(first["weights"], second["weights"])
        assert first["loss"].tolist() != second["loss"].tolist()
