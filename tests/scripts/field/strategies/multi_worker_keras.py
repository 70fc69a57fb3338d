"""After TensorFlow's "Multi-worker training with Keras"."""

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
os.environ.pop("TF_CONFIG", None)


def mnist_dataset(batch_size):
    random = np.random.default_rng(0)
    x_train = random.random((150, 6, 6)).astype("float32")
    y_train = (x_train.mean(axis=(1, 2)) > 0.5).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6, 6)),
            keras.layers.Reshape(target_shape=(6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(learning_rate=0.1), metrics=["accuracy"])
    return model


os.environ["TF_CONFIG"] = json.dumps(tf_config)
per_worker_batch_size, num_workers = 16, len(tf_config["cluster"]["worker"])
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_dataset(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset_no_auto_shard = multi_worker_dataset.with_options(options)

with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()
callbacks = [
    keras.callbacks.BackupAndRestore(backup_dir="backup"),
    keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True),
]
history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=7, callbacks=callbacks, verbose=0)
again = multi_worker_model.fit(dataset_no_auto_shard, epochs=1, steps_per_epoch=7, verbose=0)

task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
is_chief = task_type is None or task_type == "chief" or (task_type == "worker" and task_id in (0, None))
model_path = "keras-model.keras"
write_model_path = model_path if is_chief else f"workertemp_{task_id}/{model_path}"
multi_worker_model.save(write_model_path)
if not is_chief:
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))
loaded_model = keras.models.load_model(model_path)
loaded = loaded_model.fit(multi_worker_dataset, epochs=1, steps_per_epoch=4, verbose=0)

checkpoint = tf.train.Checkpoint(model=multi_worker_model)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory="ckpt", max_to_keep=1)
checkpoint_manager.save()
latest_checkpoint = tf.train.latest_checkpoint("ckpt")
checkpoint.restore(latest_checkpoint)
evaluated = multi_worker_model.evaluate(multi_worker_dataset.take(5), verbose=0)
record(first=history.history, again=again.history, loaded=loaded.history, evaluated=evaluated)
record(weights=multi_worker_model.get_weights(), files=sorted(os.listdir(".")))
