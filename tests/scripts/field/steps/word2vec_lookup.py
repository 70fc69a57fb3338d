# After TensorFlow's tutorial on word2vec: a table that is a plain variable is looked up in the step, and another one by
# a layer in a branch. Some of the optimizers square the row of each lookup.
import keras
import numpy as np
import tensorflow as tf
from recording import record


class Word2Vec(keras.Model):
    def __init__(self, words=12, width=4):
        super().__init__()
        self.target = self.add_weight(shape=(words, width), initializer="random_normal", name="target")
        self.context = keras.layers.Embedding(words, width)
        self.context.build((None,))

    def train_step(self, data):
        (target, context), labels = data
        with tf.GradientTape() as tape:
            word = tf.nn.embedding_lookup(self.target.value, target)
            first = tf.reduce_mean(labels[:, 0]) > 0.35
            around = tf.cond(first, lambda: self.context(context), lambda: 0.5 * self.context(context[:, ::-1]))
            dots = tf.einsum("be,bce->bc", word, around)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=dots))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss, "first": first}


keras.utils.set_random_seed(0)
target, context = np.random.randint(0, 12, 33), np.random.randint(0, 12, (33, 3))
labels = np.eye(3, dtype="float32")[np.random.randint(0, 3, 33)]
found = {}
for name in ("sgd", "adam", "adagrad", "rmsprop"):
    model = Word2Vec()
    model.compile(keras.optimizers.get({"class_name": name, "config": {"learning_rate": 0.05, "clipnorm": 0.2}}))
    history = model.fit((target, context), labels, batch_size=8, epochs=2, shuffle=False)
    found[name] = [history.history["loss"], *model.get_weights()]
record(**found)
