"""Univariate forecasting: windows by tf.data, a callback that shows rates, a forecast beyond the data."""

import keras
import numpy as np
import tensorflow as tf
from recording import record


def trend(time, slope=0.0):
    return slope * time


def seasonality(time, period, amplitude=1.0):
    phase = (time % period) / period
    return amplitude * np.where(phase < 0.4, np.cos(phase * 2 * np.pi), 1 / np.exp(3 * phase))


def windowed_dataset(series, window_size, batch_size, shuffle_buffer):
    series = tf.expand_dims(series, axis=-1)
    ds = tf.data.Dataset.from_tensor_slices(series)
    ds = ds.window(window_size + 1, shift=1, drop_remainder=True)
    ds = ds.flat_map(lambda w: w.batch(window_size + 1))
    ds = ds.shuffle(shuffle_buffer, seed=51)
    ds = ds.map(lambda w: (w[:-1], w[1:]))
    return ds.batch(batch_size).prefetch(1)


def model_forecast(model, series, window_size):
    ds = tf.data.Dataset.from_tensor_slices(series)
    ds = ds.window(window_size, shift=1, drop_remainder=True)
    ds = ds.flat_map(lambda w: w.batch(window_size)).batch(16).prefetch(1)
    return model.predict(ds, verbose=0)


time = np.arange(90, dtype="float32")
series = (1 + trend(time, 0.05) + seasonality(time, 12, 1.0)).astype("float32")
tf.random.set_seed(51)
np.random.seed(51)
keras.utils.set_random_seed(51)
train = windowed_dataset(series[:70], 8, 7, 80)
model = keras.Sequential(
    [
        keras.Input((None, 1)),
        keras.layers.Conv1D(4, 3, padding="causal", activation="relu"),
        keras.layers.LSTM(5, return_sequences=True),
        keras.layers.Dense(1),
        keras.layers.Lambda(lambda x: x * 4.0),
    ]
)
schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 * 10 ** (epoch / 4))
model.compile(keras.optimizers.SGD(momentum=0.9), keras.losses.Huber(), metrics=["mae"])
history = model.fit(train, epochs=3, callbacks=[schedule], verbose=0)
forecast = model_forecast(model, series[..., np.newaxis], 8)[62:-1, -1, 0]
error = float(np.mean(np.abs(series[70:][: len(forecast)] - forecast)))
state = list(series[-8:])
for _ in range(3):
    state.append(float(model.predict(np.array(state[-8:])[None, :, None], verbose=0)[0, -1, 0]))
record(history=history.history, error=error, forecast=forecast, future=state[-3:])
