"""A text classifier of keras-hub on a frozen backbone, after https://keras.io/keras_hub/guides/classification."""

import keras
import keras_hub
import tensorflow as tf

keras.utils.set_random_seed(1)
WORDS = ("two", "small", "workers", "train", "one", "model")
STARTS = [(first, step) for first in range(6) for step in range(1, 5)]
TEXTS = [" ".join(WORDS[(first + step * place) % 6] for place in range(4)) for first, step in STARTS]
labels = [text.count("two") % 3 for text in TEXTS]

vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=len(vocabulary),
    num_layers=1,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    dropout=0.0,
    max_sequence_length=8,
)
backbone.trainable = False
model = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=preprocessor, dropout=0.0)
model.compile(
    optimizer=keras.optimizers.Adam(0.01, epsilon=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
examples = tf.data.Dataset.from_tensor_slices((TEXTS, labels))
history = model.fit(examples.shuffle(24, seed=3).batch(5), epochs=2, validation_data=examples.batch(9), verbose=0)
print("evaluated", model.evaluate(examples.batch(7), verbose=0))
