import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
n = 50
data = {"age": np.random.rand(n, 1).astype("float32"), "city": np.random.randint(0, 5, (n, 1))}
targets = {"price": np.random.rand(n, 1).astype("float32"), "sold": np.random.randint(0, 2, (n, 1))}
age, city = keras.Input((1,), name="age"), keras.Input((1,), dtype="int32", name="city")
x = keras.layers.Concatenate()([age, keras.layers.Flatten()(keras.layers.Embedding(5, 3)(city))])
x = keras.layers.Dense(8, "relu")(x)
outputs = {
    "price": keras.layers.Dense(1, name="price")(x),
    "sold": keras.layers.Dense(1, "sigmoid", name="sold")(x),
}
model = keras.Model({"age": age, "city": city}, outputs)
model.compile(
    "adam",
    loss={"price": "mse", "sold": "binary_crossentropy"},
    loss_weights={"price": 2.0, "sold": 0.5},
    metrics={"price": ["mae"], "sold": ["accuracy"]},
)
history = model.fit(data, targets, epochs=3, batch_size=10, shuffle=False)
record(loss=history.history["loss"], weights=model.get_weights(), predicted=model.predict(data))
