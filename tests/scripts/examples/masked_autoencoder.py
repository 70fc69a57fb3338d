"""Reconstructs the masked patches of an image, after https://keras.io/examples/vision/masked_image_modeling."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE, PATCH, MASKED = 16, 4, 0.75
PATCHES, WIDTH, DECODER_WIDTH = (SIZE // PATCH) ** 2, 16, 8


class Patches(layers.Layer):
    """Images as rows of patches: [examples, patches, pixels of a patch]."""

    def __init__(self, patch_size=PATCH, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.resize = layers.Reshape((-1, patch_size * patch_size * 3))

    def call(self, images):
        size = self.patch_size
        patches = tf.image.extract_patches(images, [1, size, size, 1], [1, size, size, 1], [1, 1, 1, 1], "VALID")
        return self.resize(patches)


class PatchEncoder(layers.Layer):
    """Embeds patches and their places, and masks most of them, others for each image."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mask_token = self.add_weight(shape=(1, PATCH * PATCH * 3), initializer="random_normal", name="mask_token")
        self.projection = layers.Dense(WIDTH)
        self.position_embedding = layers.Embedding(PATCHES, WIDTH)
        self.num_mask = int(MASKED * PATCHES)

    def call(self, patches):
        batch_size = ops.shape(patches)[0]
        positions = ops.arange(0, PATCHES, 1)[None]
        pos_embeddings = ops.tile(self.position_embedding(positions), [batch_size, 1, 1])
        patch_embeddings = self.projection(patches) + pos_embeddings
        rand_indices = tf.argsort(tf.random.uniform(shape=(batch_size, PATCHES)), axis=-1)
        mask_indices, unmask_indices = rand_indices[:, : self.num_mask], rand_indices[:, self.num_mask :]
        unmasked_embeddings = tf.gather(patch_embeddings, unmask_indices, axis=1, batch_dims=1)
        unmasked_positions = tf.gather(pos_embeddings, unmask_indices, axis=1, batch_dims=1)
        masked_positions = tf.gather(pos_embeddings, mask_indices, axis=1, batch_dims=1)
        mask_tokens = ops.repeat(self.mask_token, repeats=self.num_mask, axis=0)
        mask_tokens = ops.repeat(mask_tokens[None], repeats=batch_size, axis=0)
        masked_embeddings = self.projection(mask_tokens) + masked_positions
        return unmasked_embeddings, masked_embeddings, unmasked_positions, mask_indices, unmask_indices


def transformer_block(x, width):
    x1 = layers.LayerNormalization(epsilon=1e-6)(x)
    x2 = layers.Add()([layers.MultiHeadAttention(num_heads=2, key_dim=width)(x1, x1), x])
    x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
    x3 = layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x3))
    return layers.Add()([x3, x2])


def create_encoder():
    inputs = keras.Input((None, WIDTH))
    outputs = layers.LayerNormalization(epsilon=1e-6)(transformer_block(inputs, WIDTH))
    return keras.Model(inputs, outputs, name="mae_encoder")


def create_decoder():
    inputs = keras.Input((PATCHES, WIDTH))
    x = transformer_block(layers.Dense(DECODER_WIDTH)(inputs), DECODER_WIDTH)
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    pre_final = layers.Dense(SIZE * SIZE * 3, activation="sigmoid")(x)
    return keras.Model(inputs, layers.Reshape((SIZE, SIZE, 3))(pre_final), name="mae_decoder")


class MaskedAutoencoder(keras.Model):
    def __init__(self, patch_layer, patch_encoder, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.patch_layer = patch_layer
        self.patch_encoder = patch_encoder
        self.encoder = encoder
        self.decoder = decoder

    def calculate_loss(self, images):
        patches = self.patch_layer(images)
        encoded = self.patch_encoder(patches)
        unmasked_embeddings, masked_embeddings, unmasked_positions, mask_indices, _ = encoded
        encoder_outputs = self.encoder(unmasked_embeddings) + unmasked_positions
        decoder_inputs = tf.concat([encoder_outputs, masked_embeddings], axis=1)
        decoder_patches = self.patch_layer(self.decoder(decoder_inputs))
        loss_patch = tf.gather(patches, mask_indices, axis=1, batch_dims=1)
        loss_output = tf.gather(decoder_patches, mask_indices, axis=1, batch_dims=1)
        return self.compute_loss(y=loss_patch, y_pred=loss_output), loss_patch, loss_output

    def train_step(self, images):
        with tf.GradientTape() as tape:
            total_loss, loss_patch, loss_output = self.calculate_loss(images)
        train_vars = [
            self.patch_encoder.trainable_variables,
            self.encoder.trainable_variables,
            self.decoder.trainable_variables,
        ]
        grads = tape.gradient(total_loss, train_vars)
        tv_list = []
        for grad, var in zip(grads, train_vars, strict=True):
            tv_list.extend(zip(grad, var, strict=True))
        self.optimizer.apply_gradients(tv_list)
        return self.update(total_loss, loss_patch, loss_output)

    def test_step(self, images):
        return self.update(*self.calculate_loss(images))

    def update(self, total_loss, loss_patch, loss_output):
        results = {}
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(total_loss)
            else:
                metric.update_state(loss_patch, loss_output)
            result = metric.result()
            results |= result if isinstance(result, dict) else {metric.name: result}
        return results


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, base, total_steps, warmup_steps):
        super().__init__()
        self.base, self.total_steps, self.warmup_steps = base, total_steps, warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        done = (step - self.warmup_steps) / float(self.total_steps - self.warmup_steps)
        cosine = 0.5 * self.base * (1 + ops.cos(math.pi * done))
        return ops.where(step < self.warmup_steps, self.base * step / self.warmup_steps, cosine)


images = np.kron(np.random.default_rng(0).uniform(size=(100, 4, 4, 3)), np.ones((4, 4, 1))).astype("float32")
train_ds = tf.data.Dataset.from_tensor_slices(images[:80]).shuffle(80, seed=5).batch(20)
val_ds = tf.data.Dataset.from_tensor_slices(images[80:]).batch(20)
model = MaskedAutoencoder(Patches(), PatchEncoder(), create_encoder(), create_decoder())
model.compile(
    optimizer=keras.optimizers.AdamW(WarmUpCosine(0.005, 16, 3), weight_decay=1e-4),
    loss=keras.losses.MeanSquaredError(),
    metrics=["mae"],
)
history = model.fit(train_ds, epochs=4, validation_data=val_ds, verbose=0)
