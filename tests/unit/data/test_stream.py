"""The stream is a pure function of (seed, epoch, position), and the shares of any workers make up the whole."""

import functools
import itertools
import os
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist import config
from tfdist.data import cache, inputs, order, stream
from tfdist.zoo import prepare as zoo_prepare

SEED, BATCH, NUM_EXAMPLES = 3, 24, 100
STEPS_PER_EPOCH = NUM_EXAMPLES // BATCH


def shares(workers: int, devices: int = 1) -> list[stream.ReplicaShard]:
    """The share of each worker."""
    return [
        stream.ReplicaShard(first_replica=rank * devices, local_replicas=devices, num_replicas=workers * devices)
        for rank in range(workers)
    ]


class Images:
    """Random images, from a table: their making need not be traced for each stream."""

    table = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, 6, 6, 1), np.uint8)

    def __len__(self):
        return NUM_EXAMPLES

    def read(self, ids):
        return {"image": tf.gather(self.table, ids), "label": ids % 4}


def augment(batch, seeds, *, training):
    """Hands on which examples these are, beside what random augmentation makes of them."""
    prepared = zoo_prepare.image(batch, seeds, training=training, pad=1, flip=True)
    return prepared | {"id": seeds[:, 1], "stream": seeds[:, 0]}


@functools.cache  # As a run, which traces it once.
def training_stream(share: stream.ReplicaShard, **options):
    arguments = {"global_batch": BATCH, "seed": SEED, "shuffle": True} | options
    return stream.training(Images(), augment, share, **arguments)


def take(share: stream.ReplicaShard, first_step: int, last_step: int, **options) -> list[dict[str, np.ndarray]]:
    """One worker's batches of the steps, its replicas' shares joined."""
    dataset = training_stream(share, **options)(first_step, last_step)
    elements = list(dataset.take((last_step - first_step) * share.local_replicas).as_numpy_iterator())
    size = share.local_replicas
    return [join(elements[i : i + size]) for i in range(0, len(elements), size)]


def join(batches) -> dict[str, np.ndarray]:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize(("workers", "devices"), slow_except([(2, 1), (3, 1), (4, 1), (2, 2)], [(2, 2)]))
def test_the_shares_of_all_workers_are_the_batch_of_one_across_epochs(workers, devices):
    steps = 3 * STEPS_PER_EPOCH
    whole = take(stream.ReplicaShard(), 0, steps)
    parts = [take(share, 0, steps) for share in shares(workers, devices)]
    for step in range(steps):
        union = join([part[step] for part in parts])
        for name in whole[step]:
            np.testing.assert_array_equal(union[name], whole[step][name], err_msg=f"step {step}: {name}")


def test_an_epoch_takes_each_example_at_most_once_and_drops_the_remainder():
    steps = take(stream.ReplicaShard(), 0, 8 * STEPS_PER_EPOCH)
    epochs = np.stack([batch["id"] for batch in steps]).reshape(8, -1)
    for ids in epochs:
        assert len(set(ids)) == len(ids) == STEPS_PER_EPOCH * BATCH
    assert len({tuple(ids) for ids in epochs}) == 8
    # What an epoch drops, another takes: each epoch permutes all examples.
    assert set(epochs.ravel()) == set(range(NUM_EXAMPLES))
    first = [
        take(stream.ReplicaShard(), 0, 1, **options)[0]["id"].tolist() for options in ({"seed": 1}, {"shuffle": False})
    ]
    assert first[1] == [*range(BATCH)] and first[0] not in (first[1], epochs[0][:BATCH].tolist())


@pytest.mark.parametrize("num_examples", [1, 2, 17, 20_000])
def test_an_epoch_is_a_permutation_unlike_those_of_other_epochs(num_examples):
    options = {"seed": SEED, "num_examples": num_examples, "global_batch": num_examples, "shuffle": True}
    rows = tf.range(num_examples, dtype=tf.int64)
    orders = [order.example_ids(tf.constant(epoch, tf.int64), rows, **options)[0].numpy() for epoch in (0, 1, 5)]
    for found in orders:
        np.testing.assert_array_equal(np.sort(found), np.arange(num_examples))
    if num_examples > 1000:
        for first, second in itertools.combinations([np.arange(num_examples), *orders], 2):
            # Of independent permutations the correlation has standard deviation 1 / sqrt(size) = 0.007.
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.035


def test_augmentation_depends_on_the_example_and_the_epoch_not_on_the_position():
    seen: dict[int, list[np.ndarray]] = {}
    for batch in take(stream.ReplicaShard(), 0, 4 * STEPS_PER_EPOCH):
        for example, image in zip(batch["id"], batch["image"], strict=True):
            seen.setdefault(int(example), []).append(image)
    repeated = [images for images in seen.values() if len(images) > 2]
    assert len(repeated) > 50
    assert np.mean([len({image.tobytes() for image in images}) > 1 for images in repeated]) > 0.9


@pytest.mark.parametrize(
    ("workers", "devices"), slow_except([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)], [(1, 1), (2, 2)])
)
def test_evaluation_takes_every_example_once_on_any_topology(workers, devices):
    taken = []
    for share in shares(workers, devices):
        dataset, steps = stream.evaluation(Images(), augment, share, global_batch=BATCH, seed=SEED)
        assert steps == 5  # 100 examples in batches of 24
        for batch, mask in dataset.take(steps * devices).as_numpy_iterator():
            assert mask.shape == (BATCH // (workers * devices),)
            taken.append(batch["id"][mask])
    np.testing.assert_array_equal(np.sort(np.concatenate(taken)), np.arange(NUM_EXAMPLES))


def with_id(batch, seeds, *, training):
    """Hands the batch on, with which examples these are."""
    return batch | {"id": seeds[:, 1]}


class Far:
    """Examples that are nowhere but in the files of a cache."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def read(self, ids):
        raise AssertionError("read, though it is kept")


def anonymous_memory() -> int:
    """Bytes that this process holds, the pages of files left out."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ten_million_examples_on_disk_take_no_memory(tmp_path):
    grown = []
    for count in (10_000, 10_000_000):
        options = config.Data(source={"target": "far", "count": count}, cache="raw", cache_dir=str(tmp_path))
        kept = cache.add_cache(options, Far(count), "train")
        folder = tmp_path / f"tfdist-{os.geteuid()}"
        folder.mkdir(exist_ok=True)
        # A file full of zeros, which take no place on disk.
        kind = np.dtype([("image", np.uint8, (8, 8, 1))])
        np.lib.format.open_memmap(folder / f"{kept.name}.npy", "w+", kind, (count,)).flush()
        before = anonymous_memory()
        dataset = stream.training(kept, with_id, stream.ReplicaShard(), global_batch=64, seed=SEED, shuffle=True)(0, 20)
        read = [batch["id"] for batch in dataset.take(20).as_numpy_iterator()]
        grown.append(anonymous_memory() - before)
        assert np.max(read) > 0.9 * count and len(np.unique(read)) == 20 * 64
    # An index of 4 bytes an example would be 40 MB.
    assert grown[1] - grown[0] < 20e6


@pytest.mark.parametrize(
    ("function", "returned", "message"),
    [
        ("read", lambda x: (x, x), r"read\(ids\) .*Received: tuple"),
        ("read", lambda x: {"image": np.zeros(24)}, r"read\(ids\) returns 'image' as ndarray"),
        ("read", lambda x: {"image": x[:3]}, r"read\(ids\) returns 'image' of shape \(3,\) for 24 examples"),
        ("prepare", lambda x: {"image": tf.reduce_sum(x)}, r"data\.prepare returns 'image' of shape \(\) for 24 ex"),
    ],
)
def test_a_batch_without_a_row_for_each_example_is_refused(function, returned, message):
    class Source(Images):
        def read(self, ids):
            return returned(ids) if function == "read" else super().read(ids)

    def prepare(batch, seeds, *, training):
        return returned(batch["label"]) if function == "prepare" else batch

    dataset = stream.training(Source(), prepare, shares(1)[0], global_batch=BATCH, seed=SEED, shuffle=True)
    with pytest.raises(ValueError, match=message):
        dataset(0, 1)
    of_text = config.Config(model={}, data=config.Data(source={"target": "os.path:basename"}))
    with pytest.raises(ValueError, match=r"config\.data\.source: os\.path:basename must return an object with len\(\)"):
        inputs.open_source(of_text, "train")


def test_a_source_in_python_has_batches_of_a_known_size():
    """As docs/your-config.md shows it: Python code in `tf.numpy_function`, which forgets the number of rows."""

    class InPython(Images):
        def read(self, ids):
            image = tf.numpy_function(lambda rows: self.table[rows], [ids], tf.uint8)
            return {"image": tf.ensure_shape(image, [None, 6, 6, 1]), "label": ids % 4}

    given = {"global_batch": BATCH, "seed": SEED}
    elements = stream.training(InPython(), zoo_prepare.identity, shares(2)[0], shuffle=True, **given)(0, 1)
    assert elements.element_spec["image"].shape == [BATCH // 2, 6, 6, 1]
    evaluation, _ = stream.evaluation(InPython(), zoo_prepare.identity, shares(2)[0], **given)
    assert evaluation.element_spec[0]["image"].shape == [BATCH // 2, 6, 6, 1]
