"""A causal language model of keras-hub from random weights, then LoRA, after https://keras.io/keras_hub/guides."""

import string

import keras
import keras_hub

keras.utils.set_random_seed(1)
WORDS = ("two", "small", "workers", "train", "one", "model")
STARTS = [(first, step) for first in range(6) for step in range(1, 5)]
TEXTS = [" ".join(WORDS[(first + step * place) % 6] for place in range(4)) for first, step in STARTS]

# A tokenizer of letters, with the merges of "th" and "tr".
symbols = ["<|endoftext|>", "\u0120", *string.ascii_lowercase, "th", "tr"]
tokenizer = keras_hub.models.GPT2Tokenizer(
    vocabulary={symbol: index for index, symbol in enumerate(symbols)}, merges=["t h", "t r"]
)
preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=12)
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=len(symbols),
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    dropout=0.0,
    max_sequence_length=12,
)
model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=preprocessor)


def compile():
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, epsilon=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(name="entropy", from_logits=True)],
    )


compile()
model.fit(TEXTS, batch_size=5, epochs=2, verbose=0)
backbone.enable_lora(2)
compile()
history = model.fit(TEXTS, batch_size=5, epochs=2, validation_data=(TEXTS[:7], None), verbose=0)
print("evaluated", model.evaluate(TEXTS, batch_size=5, verbose=0))
print("predicted", model.predict(TEXTS[:3], verbose=0).shape)
print("generated", model.generate("two", max_length=6))
