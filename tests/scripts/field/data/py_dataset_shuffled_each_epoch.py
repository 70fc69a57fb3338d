import keras
import numpy as np
from recording import record


class ImageSequence(keras.utils.Sequence):
    """As on Kaggle: shuffles its indexes at the end of each epoch."""

    def __init__(self, images, labels, batch_size=8, shuffle=True):
        super().__init__()
        self.images, self.labels, self.batch_size, self.shuffle = images, labels, batch_size, shuffle
        self.indexes, self.epochs_ended = np.arange(len(images)), 0

    def __len__(self):
        return int(np.ceil(len(self.images) / self.batch_size))

    def __getitem__(self, idx):
        chosen = self.indexes[idx * self.batch_size : (idx + 1) * self.batch_size]
        return {"image": self.images[chosen]}, self.labels[chosen], np.linspace(0.5, 1.5, len(chosen))

    def on_epoch_end(self):
        self.epochs_ended += 1
        if self.shuffle:
            np.random.shuffle(self.indexes)


keras.utils.set_random_seed(1)
images = np.random.rand(50, 5, 5, 1).astype("float32")
labels = keras.utils.to_categorical(np.random.randint(0, 3, 50), 3)
train, valid = ImageSequence(images[:38], labels[:38]), ImageSequence(images[38:], labels[38:], shuffle=False)
inputs = keras.Input((5, 5, 1), name="image")
model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(keras.layers.Flatten()(inputs)))
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train, validation_data=valid, epochs=3, verbose=0, shuffle=False)
record(history=history.history, predicted=model.predict(valid, verbose=0), score=model.evaluate(train, verbose=0))
record(ended=[train.epochs_ended, valid.epochs_ended], order=train.indexes)
