"""Data-parallel gradient descent by hand, in NumPy, in which each part can be left out or done wrong.

For teaching only: `tfdist trajectories --stages` and `tfdist parallel_mistakes` use it. `run_workers` starts its
workers, as `python -m tfdist.configs.laboratory.by_hand FILE`. They connect as tfdist.main does, and exchange weights
and gradients.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfdist.cluster import process_exit
from tfdist.config import schema, specs
from tfdist.launch import local_workers
from tfdist.report import files
from tfdist.tools import child_runs

# float64 [k] of this worker -> float64 [workers, k], in rank order.
Gather = Callable[[np.ndarray], np.ndarray]


class Problem(Protocol):
    """Examples, and a model of them whose weights are one vector."""

    num_examples: int

    def start(self, seed: int) -> np.ndarray:
        """Returns initial weights, float64 [k]."""

    def gradient(self, weights: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the gradient of the loss and the loss, both summed over the examples `ids`."""

    def test(self, weights: np.ndarray) -> float:
        """Returns the value to draw after an epoch, such as the accuracy on other examples; NaN: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train: right, or with a part left out or done wrong."""

    name: str
    steps: int
    # Over all workers.
    batch: int
    rate: float
    seed: int = 0
    # How many of the problem's first examples are used; None: all.
    examples: int | None = None
    # All workers start from worker 0's weights; otherwise each from its own.
    broadcast: bool = True
    # All workers apply the same gradient, summed over the workers; otherwise each applies its own.
    average: bool = True
    # The sum over the workers is divided by the batch of one worker, not by that of all.
    divide_by_own: bool = False
    # "seeded": epochs have a permutation that all workers share. "unseeded": each worker has its own. "batches": the
    # order of the batches is shuffled, and not the examples in them. "stored": no shuffle.
    order: str = "seeded"


def own_examples(recipe: Recipe, num_examples: int, step: int, rank: int, workers: int) -> np.ndarray:
    """Returns the examples of one worker in a step, int64 [batch / workers]."""
    per_epoch, per_worker = num_examples // recipe.batch, recipe.batch // workers
    epoch, place = divmod(step, per_epoch)
    seed = [recipe.seed, epoch, *([1 + rank] if recipe.order == "unseeded" else [])]
    generator = np.random.default_rng(seed)
    if recipe.order == "batches":
        place = int(generator.permutation(per_epoch)[place])
    ids = np.arange(num_examples) if recipe.order in ("batches", "stored") else generator.permutation(num_examples)
    first = place * recipe.batch + rank * per_worker
    return ids[first : first + per_worker]


def train(
    problem: Problem, recipe: Recipe, *, rank: int = 0, workers: int = 1, gather: Gather = lambda row: row[np.newaxis]
) -> dict[str, np.ndarray]:
    """Trains on this worker.

    Returns:
        "weights": before each step and after the last one, float64 [steps + 1, k]; "loss": of this worker's examples in
        each step, float64 [steps]; "test": `Problem.test` after each epoch.
    """
    weights = problem.start(recipe.seed + rank)
    if recipe.broadcast:
        weights = gather(weights)[0]
    found: dict[str, list] = {"weights": [weights], "loss": [], "test": []}
    num_examples = recipe.examples or problem.num_examples
    per_epoch = num_examples // recipe.batch
    for step in range(recipe.steps):
        ids = own_examples(recipe, num_examples, step, rank, workers)
        total, loss = problem.gradient(weights, ids)
        gradient = total / (recipe.batch if recipe.average and not recipe.divide_by_own else len(ids))
        if recipe.average:
            gradient = gather(gradient).sum(axis=0)
        weights = weights - recipe.rate * gradient
        found["weights"].append(weights)
        found["loss"].append(loss / len(ids))
        if (step + 1) % per_epoch == 0:
            found["test"].append(problem.test(weights))
    return {name: np.array(rows) for name, rows in found.items()}


def run_workers(
    problem: Mapping[str, Any], recipes: Sequence[Recipe], *, workers: int, backend: str, workdir: Path
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Trains each recipe on `workers` worker processes, which connect once.

    Args:
        problem: a spec of a `Problem`.
        recipes: with different names.
        workers: the number of processes, or of Slurm tasks.
        backend: a result of `child_runs.choose_backend`: "processes" or "slurm".
        workdir: gets the settings, the log and the results.

    Returns:
        Name of the recipe -> the results of `train` of each worker, in rank order.

    Raises:
        ValueError: a worker failed; contains the end of the log.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    settings = {"problem": dict(problem), "recipes": [dataclasses.asdict(recipe) for recipe in recipes]}
    files.write_json(workdir / "settings.json", settings)
    program, log = ["-m", "tfdist.configs.laboratory.by_hand", str(workdir / "settings.json")], workdir / "workers.log"
    command = [sys.executable, "-m", "tfdist.launch", f"--workers={workers}", "--max_restarts=0", "--", *program]
    if backend == "slurm":
        command = ["srun", f"--ntasks={workers}", "--kill-on-bad-exit=1", sys.executable, *program]
    code = child_runs.run_command(command, log, dict(os.environ) | local_workers.first_gpus(os.environ, 0), shown=True)
    if code:
        raise ValueError(f"The {workers} workers exited with code {code}; the end of {log}:\n{child_runs.end_of(log)}")
    return {
        recipe.name: [dict(np.load(workdir / f"{recipe.name}-{rank}.npz")) for rank in range(workers)]
        for recipe in recipes
    }


def main() -> int:
    """Runs one worker: trains the recipes of a file, and writes the results of each beside it."""
    path = Path(sys.argv[1])
    settings = json.loads(path.read_text())
    from tfdist.cluster import strategy

    connected = strategy.connect(schema.ClusterOptions(gpus=0))
    problem = specs.build(settings["problem"], field="problem")
    for number, values in enumerate(settings["recipes"], 1):
        recipe = Recipe(**values)
        if connected.is_chief:
            print(f"{number} of {len(settings['recipes'])}: {recipe.name}", flush=True)
        found = train(problem, recipe, rank=connected.rank, workers=connected.num_workers, gather=connected.all_gather)
        np.savez(path.with_name(f"{recipe.name}-{connected.rank}.npz"), **found)
    connected.leave()
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    process_exit.run_and_exit(main, saves=False)
