import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 8, 8, 2).astype("float32"), np.random.rand(40, 2).astype("float32")
layers, limit = keras.layers, keras.constraints.MaxNorm(0.5)
model = keras.Sequential(
    [
        keras.Input((8, 8, 2)),
        layers.SpectralNormalization(layers.Conv2D(4, 3, activation="relu"), power_iterations=2),
        layers.Flatten(),
        layers.Lambda(lambda h: 2.0 * h),
        layers.Dense(6, "relu", kernel_regularizer="L1L2", kernel_constraint=limit),
        layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.01), use_bias=False),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, y, epochs=2, batch_size=9, shuffle=False)
record(history=history.history, weights=model.get_weights(), predicted=model.predict(x[:5]))
