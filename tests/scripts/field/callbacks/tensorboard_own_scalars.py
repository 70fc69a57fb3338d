import datetime
import glob
import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

log_dir = "logs/fit/" + datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
file_writer = tf.summary.create_file_writer(log_dir + "/metrics")
file_writer.set_as_default()


def schedule(epoch):
    rate = 0.2 if epoch < 2 else 0.05
    tf.summary.scalar("learning rate", data=rate, step=epoch)
    return rate


def log_confusion(epoch, logs):
    guessed = np.argmax(model.predict(x, verbose=0), axis=1)
    matrix = tf.math.confusion_matrix(y, guessed, 3).numpy()
    image = np.repeat(np.repeat(matrix, 4, 0), 4, 1)[None, :, :, None].astype("float32")
    with file_writer.as_default():
        tf.summary.image("Confusion Matrix", image / max(1, image.max()), step=epoch)
        tf.summary.histogram("kernel", model.layers[0].kernel.value, step=epoch)
    matrices.append(matrix)


keras.utils.set_random_seed(5)
x, y, matrices = np.random.rand(45, 4).astype("float32"), np.random.randint(0, 3, 45), []
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    keras.callbacks.TensorBoard(log_dir, histogram_freq=1, profile_batch=0, write_graph=False),
    keras.callbacks.LearningRateScheduler(schedule),
    keras.callbacks.LambdaCallback(on_epoch_end=log_confusion),
]
history = model.fit(x, y, validation_split=0.2, epochs=3, batch_size=9, shuffle=False, verbose=0, callbacks=callbacks)
file_writer.close()
events = glob.glob(os.path.join(log_dir, "**", "events*"), recursive=True)
steps = {}
for path in glob.glob(log_dir + "/metrics/events*"):
    for event in tf.compat.v1.train.summary_iterator(path):
        for value in event.summary.value:
            if not value.tag.startswith("batch_"):  # Of the TensorBoard callback, in the writer that is the default.
                steps.setdefault(value.tag, []).append(event.step)
record(history=history.history, matrices=matrices, events=len(events), steps=dict(sorted(steps.items())))
