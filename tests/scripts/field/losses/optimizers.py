import keras
import numpy as np
from recording import record

o, schedules = keras.optimizers, keras.optimizers.schedules
names = ["Adam", "Adafactor", "Ftrl", "Lamb", "Lion", "Muon"]
optimizers = {name: getattr(o, name)(learning_rate=0.01) for name in names}
optimizers |= {
    "clipnorm": o.SGD(0.1, clipnorm=0.05),
    "global": o.Adam(0.01, global_clipnorm=0.05),
    "value": o.SGD(0.1, clipvalue=0.01, momentum=0.9, nesterov=True),
    "decay": o.AdamW(0.01, weight_decay=0.1),
    "accumulate": o.SGD(0.1, gradient_accumulation_steps=2),
    "average": o.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "schedule": o.Adam(schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)),
    "scaled": o.LossScaleOptimizer(o.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=2),
}
rng = np.random.default_rng(0)
x, y = rng.random((20, 4)).astype("float32"), rng.random((20, 2)).astype("float32")
found = {}
for name, optimizer in optimizers.items():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    history = model.fit(x, y, epochs=3, batch_size=7, shuffle=False, verbose=0)
    found[name] = [history.history["loss"], model.get_weights()]
record(**found)
