# After trl's DPOTrainer: chosen and rejected answers in one batch through a policy and a frozen copy of it.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def network():
    words = keras.Input((None,), dtype="int32")
    return keras.Model(words, layers.Dense(9)(layers.GRU(6, return_sequences=True)(layers.Embedding(9, 5)(words))))


class DPO(keras.Model):
    def __init__(self, beta=0.5):
        super().__init__()
        self.policy, self.reference, self.beta = network(), network(), beta
        self.reference.set_weights(self.policy.get_weights())
        self.reference.trainable = False

    def log_probs(self, model, tokens, mask):
        logits = model(tokens[:, :-1])
        chosen = tf.gather(tf.nn.log_softmax(logits), tokens[:, 1:], axis=-1, batch_dims=2)
        return tf.split(tf.reduce_sum(chosen * mask[:, 1:], axis=1), 2)

    def train_step(self, data):
        tokens = tf.concat([data["chosen"], data["rejected"]], axis=0)
        mask = tf.cast(tokens > 0, tf.float32)
        good_before, bad_before = self.log_probs(self.reference, tokens, mask)
        with tf.GradientTape() as tape:
            good, bad = self.log_probs(self.policy, tokens, mask)
            rewards = self.beta * (good - good_before), self.beta * (bad - bad_before)
            loss = -tf.reduce_mean(tf.math.log_sigmoid(rewards[0] - rewards[1]))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.policy.trainable_variables), 0.5)
        self.optimizer.apply_gradients(zip(gradients, self.policy.trainable_variables))
        accuracy = tf.reduce_mean(tf.cast(rewards[0] > rewards[1], tf.float32))
        return {"loss": loss, "accuracy": accuracy, "margin": tf.reduce_mean(rewards[0] - rewards[1]), "norm": norm}


keras.utils.set_random_seed(0)
pairs = {name: np.random.randint(0, 9, (17, 7)) for name in ("chosen", "rejected")}
model = DPO()
model.compile(keras.optimizers.Adam(0.02))
history = model.fit(tf.data.Dataset.from_tensor_slices(pairs).batch(4), epochs=2)
record(history=history.history, weights=model.policy.get_weights())
