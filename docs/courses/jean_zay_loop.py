"""The training of IDRIS' page with a custom loop: ResNet50 on CIFAR-10, 64 images per GPU. Without tfdist.

    srun python docs/courses/jean_zay_loop.py --data=cifar-10-batches-py                # one task for each GPU
    python docs/courses/jean_zay_loop.py --replicas=2                                   # this machine, random images

`--replicas` is used on one machine only; in a Slurm step each task is one worker. What the loop lacks, and tfdist.main
has: docs/from-tf-distribute.md.
"""

import csv
import os
import shutil
import time

import jean_zay_data as data
import keras
import tensorflow as tf


def make_strategy(replicas: int) -> tf.distribute.Strategy:
    """Returns the strategy of a Slurm step, or of `replicas` devices of this machine; before any other operation."""
    gpus = shutil.which("nvidia-smi") is not None
    resolvers, communication = tf.distribute.cluster_resolver, tf.distribute.experimental
    if "SLURM_STEP_NUM_TASKS" in os.environ and gpus:
        nccl = communication.CommunicationOptions(implementation=communication.CommunicationImplementation.NCCL)
        return tf.distribute.MultiWorkerMirroredStrategy(resolvers.SlurmClusterResolver(port_base=12345), nccl)
    if "SLURM_STEP_NUM_TASKS" in os.environ:
        # Nodes without GPUs: the resolver counts tasks by GPUs, so each task has one in name only.
        tasks = int(os.environ["SLURM_STEP_TASKS_PER_NODE"].partition("(")[0])
        named = resolvers.SlurmClusterResolver(
            port_base=12345, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
        )
        workers = named.cluster_spec()
        return tf.distribute.MultiWorkerMirroredStrategy(
            resolvers.SimpleClusterResolver(workers, task_type="worker", task_id=named.task_id, rpc_layer="grpc")
        )
    if gpus:
        return tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(replicas)])
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)])
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def main() -> None:
    """Trains, evaluates after each epoch, and prints a line for it."""
    parser = data.flags(__doc__)
    parser.add_argument("--out", help="a CSV file, to which a row for each epoch is added")
    options = parser.parse_args()
    strategy = make_strategy(options.replicas)
    replicas = strategy.num_replicas_in_sync
    global_batch = options.batch * replicas
    # The shuffle of the data and the initial weights: equal on all workers.
    keras.utils.set_random_seed(data.SEED)
    train_dataset, test_dataset = map(strategy.experimental_distribute_dataset, data.datasets(options, global_batch))

    with strategy.scope():
        model = keras.applications.ResNet50(
            weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None
        )
        optimizer = keras.optimizers.SGD(0.001 * replicas)
        optimizer.build(model.trainable_variables)
        loss_of_examples = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # Divided by the global batch: the sum over the replicas is the mean over all its images.
            loss = tf.nn.compute_average_loss(loss_of_examples(labels, logits), global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def train_epoch(iterator):
        total = 0.0
        for _ in tf.range(options.steps):
            losses = strategy.run(train_step, args=next(iterator))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total / options.steps

    @tf.function
    def test_step(batch):
        strategy.run(lambda images, labels: accuracy.update_state(labels, model(images, training=False)), args=batch)

    def mean_accuracy() -> float:
        result = float(accuracy.result())
        accuracy.reset_state()
        return result

    iterator = iter(train_dataset)
    rows = []
    for epoch in range(1, options.epochs + 1):
        start = time.perf_counter()
        loss = float(train_epoch(iterator))
        seconds = time.perf_counter() - start
        speed = global_batch * options.steps / seconds
        row = {"replicas": replicas, "epoch": epoch, "seconds": seconds, "images_per_second": speed, "loss": loss}
        row["accuracy"] = mean_accuracy()
        for batch in test_dataset:
            test_step(batch)
        row["test_accuracy"] = mean_accuracy()
        rows.append(row)
        if is_chief(strategy):
            print(" ".join(f"{name} {value:.6g}" for name, value in row.items()), flush=True)
    if options.out and is_chief(strategy):
        write(options.out, rows)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this is the only worker, or the first one."""
    return getattr(strategy.cluster_resolver, "task_id", 0) in (0, None)


def write(path: str, rows: list[dict[str, float]]) -> None:
    """Adds the rows to a CSV file."""
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        if new:
            table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
