import grain
import keras
import numpy as np
from recording import record

x = np.random.RandomState(0).rand(44, 4).astype("float32")
examples = [(one, one.sum(keepdims=True)) for one in x]
sampler = grain.samplers.IndexSampler(44, shuffle=False, num_epochs=1, shard_options=grain.sharding.NoSharding())
kinds = {
    "map": lambda: grain.MapDataset.source(examples).batch(8),
    "iter": lambda: grain.MapDataset.source(examples).to_iter_dataset().batch(8),
    "loader": lambda: grain.DataLoader(
        data_source=examples, sampler=sampler, operations=[grain.transforms.Batch(8)], worker_count=0
    ),
}
found = {}
for name, data in kinds.items():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(data(), validation_data=data(), epochs=2, verbose=0)
    scores, predicted = model.evaluate(data(), verbose=0), model.predict(data(), verbose=0)
    found[name] = [history.history, scores, predicted, model.get_weights()]
record(**found)
