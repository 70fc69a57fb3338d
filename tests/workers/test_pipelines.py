"""The textbook pipeline and fixed shards: what each worker reads, in every step and after an interruption."""

import dataclasses
import functools
import re

import numpy as np
import on_workers
import pytest
import small_runs
import tensorflow as tf
import topologies
from parameters import slow_except

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.data import inputs as inputs_lib
from tfdist.data import pipelines, textbook
from tfdist.training import loop
from tfdist.training import run as run_lib
from tfdist.zoo import sources

WORKERS = 2
EXAMPLES, BATCH, STEPS, STARTS = 50, 8, 14, (9,)
SEED = 5
SPOILED = 37
# How many examples were read and prepared.
COUNTS = {"read": 0, "prepared": 0}
CASES = {
    "stream": {},
    "fixed": {"shards": "fixed"},
    "contiguous": {"shards": "contiguous"},
    "textbook": {"pipeline": "textbook"},
}


def count(what: str, ids: tf.Tensor) -> tf.Tensor:
    """Returns `ids`, and counts them when they are computed."""

    def add(values):
        COUNTS[what] += values.size
        return values

    counted = tf.numpy_function(add, [ids], tf.int64)
    return tf.ensure_shape(counted, ids.shape)


class Numbers:
    """Examples that are their own numbers."""

    def __init__(self, split: str):
        self.split = split

    def __len__(self) -> int:
        return EXAMPLES

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`."""
        return {"image": count("read", ids)}


def numbered(batch, seeds, *, training):
    """Returns the ids of the examples, and their seeds."""
    return {"id": count("prepared", batch["image"]), "seed": seeds[:, 1], "stream": seeds[:, 0]}


def spoiled(batch, seeds, *, training):
    """Makes a value of example `SPOILED` that is not finite."""
    bad = tf.equal(batch["image"], SPOILED)[:, tf.newaxis]
    return {"pair": tf.where(bad, tf.constant([0.0, np.nan]), 0.0)}


def take(cluster, iterator, steps: int) -> dict[str, np.ndarray]:
    """The next steps of this worker: name -> [steps, examples]."""
    taken = []
    for _ in range(steps):
        local = cluster.strategy.experimental_local_results(next(iterator))
        taken.append({name: np.concatenate([part[name].numpy() for part in local]) for name in local[0]})
    return {name: np.stack([step[name] for step in taken]) for name in taken[0]}


def measure(cluster, options: dict) -> dict[str, np.ndarray]:
    """What one pipeline gives this worker from the start, and from later steps."""
    data = c.Data(**{"source": {"target": f"{__name__}:Numbers"}, "batch_size": BATCH} | options)
    config = c.Config(model={"target": "lab:linear"}, data=data, train=c.Train(steps=STEPS), seed=SEED)
    train, test = (inputs_lib.open_source(config, split) for split in ("train", "test"))
    inputs = pipelines.Inputs(
        make_feed=pipelines.make_feed,
        prepare=numbered,
        prepare_all=numbered,
        objective=lambda *args, **keywords: {},
        adapt=None,
        train_source=train,
        evaluation_source=test,
    )
    sizes, shard = inputs_lib.make_sizes(config, inputs, cluster.num_replicas), run_lib.replica_shard(cluster)
    made = inputs.make_feed(config, inputs, sizes, shard, cluster)
    COUNTS.update(dict.fromkeys(COUNTS, 0))
    found = take(cluster, made.open_training(0, STEPS), STEPS)
    found |= {what: np.array(number) for what, number in COUNTS.items()}
    for start in STARTS:
        later = take(cluster, made.open_training(start, STEPS), STEPS - start)
        found |= {f"{name} from {start}": values for name, values in later.items()}
    dataset, steps = made.evaluation()
    iterator = cluster.distribute(dataset)
    kept = []
    for _ in range(steps):
        batches, masks = (cluster.strategy.experimental_local_results(part) for part in next(iterator))
        for batch, mask in zip(batches, masks, strict=True):
            kept += batch["id"].numpy()[mask.numpy()].tolist()
    inputs = dataclasses.replace(inputs, prepare=spoiled)
    searched = inputs.make_feed(config, inputs, sizes, shard, cluster).first_nonfinite
    nonfinite = [searched(first, STEPS) or (0, "") for first in (1, STARTS[0] + 1)]
    return found | {"evaluated": np.array(kept), "nonfinite": np.array(nonfinite, str)}


def take_all(cases: list[str]) -> dict[str, np.ndarray]:
    """What the pipelines of `cases` give this worker."""
    cluster = strategy.connect(c.ClusterOptions(logical_devices=2, connect_seconds=240.0))
    return {f"{case}/{key}": value for case in cases for key, value in measure(cluster, CASES[case]).items()}


# The cases that are measured together; each takes a second of each worker.
QUICK = ("stream", "textbook")


@pytest.fixture(scope="module")
def measured():
    """Whether slow -> what two workers of two devices each have taken: case -> name -> array, for each worker."""

    @functools.cache
    def measure(slow):
        return on_workers.call(take_all, [case for case in CASES if (case in QUICK) != slow], workers=WORKERS)

    return measure


@pytest.fixture
def workers(measured, request):
    """What two workers have taken in the `case` of a test, and in those that are measured with it."""
    return measured(request.getfixturevalue("case") not in QUICK)


def of_step(workers, case):
    """The examples of all workers in each step, sorted."""
    return np.sort(np.concatenate([worker[f"{case}/id"] for worker in workers], axis=1))


@pytest.mark.parametrize("case", slow_except(CASES, QUICK))
def test_an_epoch_has_each_example_once_and_a_resume_has_the_same_steps(workers, case):
    epoch = EXAMPLES // BATCH
    steps = of_step(workers, case)
    for first in (0, epoch):
        assert len(set(steps[first : first + epoch].ravel())) == epoch * BATCH
    assert len({tuple(step) for step in steps}) == STEPS
    for worker in workers:
        for start in STARTS:
            for name in ("id", "seed", "stream"):
                np.testing.assert_array_equal(worker[f"{case}/{name} from {start}"], worker[f"{case}/{name}"][start:])
    evaluated = np.concatenate([worker[f"{case}/evaluated"] for worker in workers])
    np.testing.assert_array_equal(np.sort(evaluated), np.arange(EXAMPLES))


@pytest.mark.parametrize("case", ["textbook"])
def test_the_textbook_batches_of_two_workers_are_those_of_one(workers, case):
    data = c.Data(**{"source": {"target": f"{__name__}:Numbers"}, "batch_size": BATCH} | CASES[case])
    source = inputs_lib.open_source(c.Config(model={}, data=data), "train")
    tf.random.set_seed(None)  # Shuffles depend on it: the workers have none, other tests may have set one.
    dataset = textbook.training(source, numbered, data, seed=SEED)(0, STEPS)
    one = [np.sort(batch["id"]) for batch in dataset.take(STEPS).as_numpy_iterator()]
    np.testing.assert_array_equal(of_step(workers, case), one)


@pytest.mark.parametrize("case", slow_except(CASES, QUICK))
def test_a_worker_reads_and_prepares_its_rows_only(workers, case):
    taken = STEPS * BATCH
    for worker in workers:
        read, prepared = worker[f"{case}/read"], worker[f"{case}/prepared"]
        if case in ("stream", "fixed", "contiguous"):
            # Half of what is taken, and what is read ahead: three steps.
            assert taken / 2 <= read == prepared < taken * 0.8
        else:
            # Everything, for the worker's half.
            assert min(read, prepared) >= taken


@pytest.mark.parametrize("case", slow_except(CASES, QUICK))
def test_the_worker_that_reads_a_nonfinite_value_names_its_step_and_example(workers, case):
    for worker in workers:
        for (step, text), start in zip(worker[f"{case}/nonfinite"], (0, *STARTS), strict=True):
            reads = np.flatnonzero((worker[f"{case}/id"][start:] == SPOILED).any(axis=1)) + start + 1
            assert int(step) == (reads[0] if reads.size else 0)
            place = rf"pair\[1\] of the prepared example {SPOILED} of the split 'train' is nan"
            place = r"pair\[1\] of row \d of a replica's batch is nan" if case == "textbook" else place
            assert re.fullmatch(f"in step {step}, {place}" if reads.size else "", text)


@pytest.mark.parametrize("case", slow_except(["fixed", "contiguous"], []))
def test_fixed_shards_give_an_example_to_the_same_worker_always(workers, case):
    def place(numbers):
        """The worker of an example, and its place there."""
        places = divmod(numbers, EXAMPLES // WORKERS)
        return places if case == "contiguous" else divmod(numbers, WORKERS)[::-1]

    for rank, worker in enumerate(workers):
        for what in ("id", "evaluated"):
            assert set(place(worker[f"{case}/{what}"].ravel())[0]) == {rank}
        np.testing.assert_array_equal(worker[f"{case}/seed"], worker[f"{case}/id"])  # Augmented by its own number.
    orders = [place(worker[f"{case}/id"])[1] for worker in workers]
    assert not np.array_equal(*orders)  # Not one order for all.


@pytest.fixture
def digits(tmp_path, own_process):
    """Makes a run of a linear model with 20 steps on the digits, in this process; `data` changes its config."""

    def make(name, **data):
        return small_runs.start(tmp_path / name, data=small_runs.data(batch_size=96, **data))

    return make


def as_tuples(split):
    """The digits as a user's tf.data.Dataset of (image, label)."""
    digits = sources.digits(split)
    return tf.data.Dataset.range(len(digits)).batch(100).map(lambda ids: tuple(digits.read(ids).values())).unbatch()


@pytest.mark.parametrize("pipeline", slow_except(["stream", "textbook"], ["stream"]))
def test_both_pipelines_call_compute_average_loss_and_strategy_reduce(digits, monkeypatch, pipeline):
    called = []

    def noted(name, function):
        def call(*args, **keywords):
            called.append((name, keywords.get("global_batch_size")))
            return function(*args, **keywords)

        return call

    for owner, name in ((tf.nn, "compute_average_loss"), (tf.distribute.Strategy, "reduce")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    assert loop.train(digits("noted", pipeline=pipeline)) == 0
    assert set(called) == {("compute_average_loss", 96), ("reduce", None)}


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_textbook_pipeline_shuffles_if_the_config_says_so(shuffle):
    options = c.Data(source={}, batch_size=4, shuffle=shuffle)
    source = sources.synthetic("train", shape=(2, 2, 1), num_examples=20)
    batches = textbook.training(source, lambda batch, seeds, training: {"id": seeds[:, 1]}, options, seed=0)
    ids = np.concatenate([batch["id"] for batch in batches(0, 10).take(10).as_numpy_iterator()]).reshape(2, 20)
    assert (np.sort(ids) == np.arange(20)).all()
    assert (ids == np.arange(20)).all() != shuffle


@pytest.mark.slow
def test_both_pipelines_have_the_same_losses_on_two_workers_without_a_shuffle(tmp_path):
    for pipeline in ("textbook", "stream"):
        options = (f"--config.data.pipeline={pipeline}", "--config.data.shuffle=false")
        topologies.train(tmp_path / pipeline, *options, workers=2)
    reports = [topologies.records(tmp_path / pipeline, "train") for pipeline in ("textbook", "stream")]
    losses, expected = ([line["loss"] for line in lines] for lines in reports)
    assert losses == expected and len(losses) == 20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": {"target": f"{__name__}:as_tuples"}}, r"as_tuples .* tf\.data\.Dataset .*tfdist\.fit"),
        ({"pipeline": "textbook", "shards": "fixed"}, r'data.shards="fixed" needs data.pipeline="stream"'),
        ({"shuffle_buffer": 9}, r"data.shuffle_buffer=9 has no effect"),
    ],
)
def test_an_invalid_pipeline_is_refused_with_what_to_do(digits, data, message):
    with pytest.raises(ValueError, match=message):
        digits("refused", **data)
