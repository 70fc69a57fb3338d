"""Common mistakes of data-parallel training, by workers in threads, and the command on two worker processes."""

import threading

import numpy as np
import pytest
from launching import tfdist

from tfdist.configs.laboratory import by_hand, parallel_mistakes

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


@pytest.mark.slow
def test_right_training_equals_one_worker_and_each_mistake_is_worse(problem):
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


@pytest.mark.slow
def test_parallel_mistakes_trains_on_connected_workers(tmp_path):
    said = tfdist("parallel_mistakes", "--workers=2", "--epochs=1", f"--workdir={tmp_path}").stdout
    pytest.importorskip("matplotlib")
    assert (tmp_path / "parallel_mistakes.svg").stat().st_size > 10_000
    assert all(name in said for name in ["right", *parallel_mistakes.TITLES])
    first, second = (np.load(tmp_path / "workers" / f"right-{rank}.npz") for rank in (0, 1))
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert first["loss"].tolist() != second["loss"].tolist()
