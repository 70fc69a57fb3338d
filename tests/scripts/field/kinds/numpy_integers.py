import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(44, 4).astype("float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
steps = np.ceil(len(x) / 8).astype(int)
one = model.fit(x, y, batch_size=np.int64(8), epochs=np.int32(2), shuffle=False, verbose=np.int64(0))
two = model.fit(data.repeat(), steps_per_epoch=steps, epochs=np.array(3), initial_epoch=np.int64(1), verbose=0)
three = model.fit(
    data.repeat(),
    steps_per_epoch=data.cardinality().numpy(),
    validation_data=data,
    validation_steps=np.uint8(2),
    verbose=0,
)
scores = [
    model.evaluate(x, y, batch_size=np.int64(8), verbose=0),
    model.evaluate(data.repeat(), steps=np.int64(3), verbose=0),
]
predicted = model.predict(x, batch_size=np.int64(8), steps=np.int64(2), verbose=0)
record(
    history=[one.history, two.history, three.history], scores=scores, predicted=predicted, weights=model.get_weights()
)
