import keras
import numpy as np
from recording import record


class ImageSequence(keras.utils.Sequence):
    """As on Kaggle: shuffles its indexes at the end of each epoch."""

    def __init__(self, images, labels, batch_size=8, shuffle=True, augment=None, **kwargs):
        super().__init__(**kwargs)
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.shuffle, self.augment = shuffle, augment
        self.indexes = np.arange(len(images))
        self.epochs_ended = 0

    def __len__(self):
        return int(np.ceil(len(self.images) / self.batch_size))

    def __getitem__(self, idx):
        chosen = self.indexes[idx * self.batch_size : (idx + 1) * self.batch_size]
        batch = self.images[chosen]
        if self.augment:
            batch = np.stack(
                [self.augment(image, np.random.default_rng(int(i))) for i, image in zip(chosen, batch, strict=True)]
            )
        return {"image": batch}, self.labels[chosen]

    def on_epoch_end(self):
        self.epochs_ended += 1
        if self.shuffle:
            np.random.shuffle(self.indexes)


def flip(image, rng):
    return image[::-1] if rng.random() < 0.5 else image


np.random.seed(1)
keras.utils.set_random_seed(1)
images = np.random.rand(50, 5, 5, 1).astype("float32")
labels = keras.utils.to_categorical(np.random.randint(0, 3, 50), 3)
train = ImageSequence(images[:38], labels[:38], augment=flip)
valid = ImageSequence(images[38:], labels[38:], shuffle=False)
inputs = keras.Input((5, 5, 1), name="image")
x = keras.layers.Flatten()(inputs)
outputs = keras.layers.Dense(3, "softmax", name="label")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train, validation_data=valid, epochs=3, verbose=0, shuffle=False)
predicted = model.predict(valid, verbose=0)
score = model.evaluate(train, verbose=0)
record(history=history.history, predicted=predicted, ended=[train.epochs_ended, valid.epochs_ended], score=score)
record(order=train.indexes)
