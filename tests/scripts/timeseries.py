"""Timeseries forecasting, https://keras.io/examples/timeseries/timeseries_weather_forecasting, on a made-up climate."""

import keras
import numpy as np

past, future, step, batch_size = 72, 12, 6, 32


def data():
    rng = np.random.default_rng(2)
    hours = np.arange(1200)
    features = [np.sin(hours / 24 * 6.283 + shift) + 0.1 * rng.standard_normal(1200) for shift in range(7)]
    features = np.stack(features, axis=-1).astype("float32")
    features = (features - features[:800].mean(axis=0)) / features[:800].std(axis=0)
    targets = features[past + future :, 1:2]

    def windows(first, last):
        return keras.utils.timeseries_dataset_from_array(
            features[first : last - past - future],
            targets[first : last - past - future],
            sequence_length=past // step,
            sampling_rate=step,
            batch_size=batch_size,
        )

    return windows(0, 800), windows(800, 1200)


def model():
    inputs = keras.layers.Input(shape=(past // step, 7))
    lstm_out = keras.layers.LSTM(16)(inputs)
    outputs = keras.layers.Dense(1)(lstm_out)
    model = keras.Model(inputs=inputs, outputs=outputs)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
    return model


def main(scope, fit, evaluate, predict):
    dataset_train, dataset_val = data()
    with scope():
        net = model()
    es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
    history = fit(net, dataset_train, epochs=3, validation_data=dataset_val, callbacks=[es_callback])
    return history, evaluate(net, dataset_val), predict(net, dataset_val)
