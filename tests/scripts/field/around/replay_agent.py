import collections
import random

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(4)
random.seed(4)
memory = collections.deque(maxlen=60)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(0.01), "mse")
target = keras.models.clone_model(model)
target.set_weights(model.get_weights())
epsilon, rewards = 1.0, []
for episode in range(4):
    state, total = np.random.rand(3).astype("float32"), 0.0
    for step in range(8):
        if random.random() < epsilon:
            action = random.randrange(2)
        else:
            action = int(np.argmax(model.predict(state[None], verbose=0)[0]))
        reward = float(state[action])
        following = np.clip(state + 0.1 * np.random.randn(3), 0, 1).astype("float32")
        memory.append((state, action, reward, following, step == 7))
        state, total = following, total + reward
    batch = random.sample(list(memory), 8)
    states, nexts = np.array([b[0] for b in batch]), np.array([b[3] for b in batch])
    q, q_next = model.predict_on_batch(states), target.predict_on_batch(nexts)
    q = np.array(q)
    for i, (_, action, reward, _, done) in enumerate(batch):
        q[i, action] = reward + (0.0 if done else 0.9 * q_next[i].max())
    model.fit(states, q, epochs=1, batch_size=8, shuffle=False, verbose=0)
    if episode % 2:
        target.set_weights(model.get_weights())
    epsilon *= 0.5
    rewards.append(total)
record(rewards=rewards, weights=model.get_weights())
