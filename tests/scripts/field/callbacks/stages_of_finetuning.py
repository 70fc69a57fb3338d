"""Transfer learning in stages: early stopping each, then unfreeze and go on with a smaller rate."""

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
images = rng.random((48, 12, 12, 3)).astype("float32")
labels = rng.integers(0, 3, 48)


def backbone():
    inputs = keras.Input((12, 12, 3))
    x = keras.layers.Conv2D(6, 3, strides=2, activation="relu", name="block1")(inputs)
    x = keras.layers.Conv2D(8, 3, activation="relu", name="block2")(x)
    return keras.Model(inputs, x, name="backbone")


base = backbone()
pretrain = keras.Sequential([base, keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(1)])
pretrain.compile("adam", "mse")
pretrain.fit(images, images.mean((1, 2, 3)), epochs=1, batch_size=12, shuffle=False, verbose=0)
base.save_weights("backbone.weights.h5")
base = backbone()
base.load_weights("backbone.weights.h5")
base.trainable = False
inputs = keras.Input((12, 12, 3))
x = base(inputs, training=False)
x = keras.layers.GlobalAveragePooling2D()(x)
x = keras.layers.Dropout(0.0)(x)
model = keras.Model(inputs, keras.layers.Dense(3)(x))
loss, found = keras.losses.SparseCategoricalCrossentropy(from_logits=True), []
for stage, (rate, frozen) in enumerate([(1e-2, ("block1", "block2")), (1e-3, ("block1",)), (1e-4, ())]):
    base.trainable = True
    for layer in base.layers:
        layer.trainable = layer.name not in frozen
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e-4, restore_best_weights=True, verbose=1),
        keras.callbacks.ModelCheckpoint(f"stage{stage}.keras", "val_loss", save_best_only=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
    ]
    history = model.fit(
        images[:36],
        labels[:36],
        validation_data=(images[36:], labels[36:]),
        epochs=3,
        batch_size=9,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    found.append(history.history | {"trainable": len(model.trainable_weights)})
best = keras.models.load_model("stage2.keras")
record(found=found, scores=best.evaluate(images, labels, verbose=0), predicted=model.predict(images, verbose=0))
