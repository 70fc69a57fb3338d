"""After TensorFlow's "Custom training loop with Keras and MultiWorkerMirroredStrategy"."""

import json
import os
import socket

import keras
import numpy as np
import tensorflow as tf
from recording import record

with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
tf_config = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
os.environ["TF_CONFIG"] = json.dumps(tf_config)
num_workers = len(tf_config["cluster"]["worker"])
global_batch_size = 16 * num_workers

checkpoint_dir = os.path.join(os.getcwd(), "ckpt")
num_epochs, num_steps_per_epoch = 3, 5
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def _is_chief(task_type, task_id, cluster_spec):
    return (
        task_type is None
        or task_type == "chief"
        or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
    )


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id, cluster_spec):
    dirpath, base = os.path.dirname(filepath), os.path.basename(filepath)
    if not _is_chief(task_type, task_id, cluster_spec):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)


def dataset_fn(global_batch_size, input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    random = np.random.default_rng(1)
    x = random.normal(size=(80, 5)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, (x[:, 0] > 0).astype("int64")))
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.repeat().batch(batch_size)


with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(2)])
    multi_worker_dataset = strategy.distribute_datasets_from_function(
        lambda input_context: dataset_fn(global_batch_size, input_context)
    )
    optimizer = keras.optimizers.RMSprop(learning_rate=0.01)
    optimizer.build(model.trainable_variables)
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)(y, predictions)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
            model_losses = model.losses
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        train_accuracy.update_state(y, predictions)
        return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch")
step_in_epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch")
resolver = strategy.cluster_resolver
task_type, task_id, cluster_spec = resolver.task_type, resolver.task_id, resolver.cluster_spec()
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id, cluster_spec)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

rows = []
while epoch.numpy() < num_epochs:
    iterator, total_loss, num_batches = iter(multi_worker_dataset), 0.0, 0
    while step_in_epoch.numpy() < num_steps_per_epoch:
        total_loss += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)
    rows.append([int(epoch.numpy()), float(train_accuracy.result()), float(total_loss / num_batches)])
    print("Epoch: %d, accuracy: %f, train_loss: %f." % tuple(rows[-1]))
    train_accuracy.reset_state()
    checkpoint_manager.save()
    if not _is_chief(task_type, task_id, cluster_spec):
        tf.io.gfile.rmtree(write_checkpoint_dir)
    epoch.assign_add(1)
    step_in_epoch.assign(0)

trained = model.get_weights()
for variable in model.trainable_variables:
    variable.assign(tf.zeros_like(variable))
checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
record(rows=rows, weights=trained, restored=model.get_weights(), epoch=epoch.numpy(), files=os.listdir("ckpt"))
