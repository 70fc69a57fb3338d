"""Translates sentences, after https://keras.io/examples/nlp/neural_machine_translation_with_transformer."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
VOCABULARY, LENGTH, EMBED, LATENT, HEADS = 30, 6, 8, 16, 2

WORDS = {"one": "uno", "two": "dos", "red": "rojo", "cat": "gato", "sees": "ve", "a": "un", "tree": "arbol"}
rng = np.random.default_rng(0)
english = [" ".join(rng.choice(list(WORDS), rng.integers(2, LENGTH))) for _ in range(70)]
spanish = [f"[start] {' '.join(WORDS[word] for word in reversed(text.split()))} [end]" for text in english]
eng_vectorization = layers.TextVectorization(VOCABULARY, output_mode="int", output_sequence_length=LENGTH)
spa_vectorization = layers.TextVectorization(
    VOCABULARY, output_mode="int", output_sequence_length=LENGTH + 1, standardize="lower"
)
eng_vectorization.adapt(english)
spa_vectorization.adapt(spanish)


def format_dataset(eng, spa):
    eng, spa = eng_vectorization(eng), spa_vectorization(spa)
    return {"encoder_inputs": eng, "decoder_inputs": spa[:, :-1]}, spa[:, 1:]


def make_dataset(eng, spa):
    dataset = tf.data.Dataset.from_tensor_slices((list(eng), list(spa))).batch(16)
    return dataset.map(format_dataset).cache().prefetch(16)


class PositionalEmbedding(layers.Layer):
    def __init__(self, sequence_length, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_embeddings = layers.Embedding(vocab_size, embed_dim)
        self.position_embeddings = layers.Embedding(sequence_length, embed_dim)

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[-1], 1)
        return self.token_embeddings(inputs) + self.position_embeddings(positions)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


class TransformerEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        padding_mask = None if mask is None else ops.cast(mask[:, None, :], dtype="int32")
        attention_output = self.attention(query=inputs, value=inputs, key=inputs, attention_mask=padding_mask)
        proj_input = self.layernorm_1(inputs + attention_output)
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        inputs_padding_mask, encoder_outputs_padding_mask = (None, None) if mask is None else mask
        attention_output_1 = self.attention_1(
            query=inputs, value=inputs, key=inputs, query_mask=inputs_padding_mask, use_causal_mask=True
        )
        out_1 = self.layernorm_1(inputs + attention_output_1)
        attention_output_2 = self.attention_2(
            query=out_1,
            value=encoder_outputs,
            key=encoder_outputs,
            query_mask=inputs_padding_mask,
            key_mask=encoder_outputs_padding_mask,
        )
        out_2 = self.layernorm_2(out_1 + attention_output_2)
        return self.layernorm_3(out_2 + self.dense_proj(out_2))


encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
x = PositionalEmbedding(LENGTH, VOCABULARY, EMBED)(encoder_inputs)
encoder_outputs = TransformerEncoder(EMBED, LATENT, HEADS)(x)
decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
x = PositionalEmbedding(LENGTH, VOCABULARY, EMBED)(decoder_inputs)
x = TransformerDecoder(EMBED, LATENT, HEADS)([x, encoder_outputs])
decoder_outputs = layers.Dense(VOCABULARY, activation="softmax")(x)
model = keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs)
model.compile("rmsprop", loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0), metrics=["accuracy"])
history = model.fit(
    make_dataset(english[:55], spanish[:55]),
    epochs=3,
    validation_data=make_dataset(english[55:], spanish[55:]),
    verbose=0,
)
