"""An exercise: data-parallel training by hand, in NumPy, of the line y = 2 x on two workers of one process.

    python line_exercise.py

Three things are missing, marked "GAP 1" to "GAP 3": broadcast, average and shards. Fill them in one after another; each
check says whether it is right. Nothing but NumPy is needed. It is laboratory 2 of the course of CSCS, without Horovod.
"""

import numpy as np

WORKERS, STEPS, BATCH, RATE = 2, 200, 8, 0.1
random = np.random.default_rng(0)
x = random.uniform(-1, 1, 64)
y = 2 * x + random.normal(0, 0.1, 64)


def gradient(weights, ids):
    """The gradient of the mean squared error of the line weights[0] x + weights[1], over the examples `ids`."""
    error = weights[0] * x[ids] + weights[1] - y[ids]
    return np.array([np.mean(2 * error * x[ids]), np.mean(2 * error)])


def broadcast(weights):
    """GAP 1: all workers must start with the weights of worker 0. `weights` has a row for each worker."""
    return weights


def average(gradients):
    """GAP 2: all workers must use the mean of all gradients. `gradients` has a row for each worker."""
    return gradients


def shard(ids, worker):
    """GAP 3: a worker must use only its own part of the batch `ids`: every WORKERS-th example, starting at its rank."""
    return ids


def train():
    """Trains all workers; returns their weights after each step, [step, worker, 2]."""
    starts = np.random.default_rng(1)
    weights = broadcast(starts.normal(size=(WORKERS, 2)))
    order, trajectory = np.random.default_rng(2), [weights]
    for _ in range(STEPS):
        ids = order.permutation(len(x))[: BATCH * WORKERS]  # The same on all workers.
        gradients = np.array([gradient(weights[worker], shard(ids, worker)) for worker in range(WORKERS)])
        weights = weights - RATE * average(gradients)
        trajectory.append(weights)
    return np.array(trajectory)


def one_worker(start):
    """The weights after each step of one worker that uses the whole batch, [step, 2]: what data-parallel means."""
    weights, order, trajectory = start, np.random.default_rng(2), [start]
    for _ in range(STEPS):
        weights = weights - RATE * gradient(weights, order.permutation(len(x))[: BATCH * WORKERS])
        trajectory.append(weights)
    return np.array(trajectory)


def check(trajectory):
    """Returns a line for each gap: whether it is filled, and what is seen if it is not."""
    apart = np.abs(trajectory[:, 0] - trajectory[:, 1]).max(axis=1)
    parts = [set(shard(np.arange(BATCH * WORKERS), worker)) for worker in range(WORKERS)]
    complete = sum(map(len, parts)) == BATCH * WORKERS and set.union(*parts) == {*range(BATCH * WORKERS)}
    example = average(np.array([[0.0, 1.0], [2.0, 3.0]]))
    distance = np.abs(trajectory[:, 0] - one_worker(trajectory[0, 0])).max()
    return [
        f"1 broadcast: {'right' if apart[0] == 0 else f'the workers start {apart[0]:.2f} apart'}",
        f"2 average:   {'right' if np.array_equal(example, [[1, 2], [1, 2]]) else 'each worker uses its own gradient'}",
        f"3 shard:     {'right' if complete else 'the workers use the same examples: nothing is gained'}",
        f"two workers and one worker with the whole batch differ by at most {distance:.1e}; at the end the workers "
        f"differ by {apart[-1]:.1e}",
    ]


if __name__ == "__main__":
    print("\n".join(check(train())))
