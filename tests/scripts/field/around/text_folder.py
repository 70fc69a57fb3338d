import os
import shutil

import keras
import numpy as np
from recording import record

# As TensorFlow's tutorial on text classification: a folder is removed before the rest is read.
words = ["good", "bad", "film", "plot", "fine", "poor"]
rng = np.random.default_rng(3)
for split in ("pos", "neg", "unsup"):
    os.makedirs(f"reviews/{split}")
    for number in range(10):
        with open(f"reviews/{split}/{number}.txt", "w") as file:
            file.write(" ".join(rng.choice(words[:4] if split == "pos" else words[2:], 6)))
shutil.rmtree("reviews/unsup")
raw = keras.utils.text_dataset_from_directory("reviews", batch_size=4, validation_split=0.2, subset="training", seed=42)
vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=6)
vectorize.adapt(raw.map(lambda text, label: text))
keras.utils.set_random_seed(0)
data = raw.map(lambda text, label: (vectorize(text), label)).cache()
layers = [keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
first = sorted(label for _, labels in raw for label in labels.numpy().tolist())
record(vocabulary=vectorize.get_vocabulary(), labels=first)
