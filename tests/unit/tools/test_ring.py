"""The ring all-reduce by hand: its sums, its messages, the connections of a job, and the ring."""

import concurrent.futures
import queue
import socket

import numpy as np
import pytest

from tfdist.configs.laboratory import ring


def run(vectors, sample=None):
    """Runs the ring over replicas that are threads; returns the results of `all_reduce`, and the messages of each."""
    replicas = len(vectors)
    boxes, sent = [queue.Queue() for _ in vectors], [[] for _ in vectors]

    def work(replica):
        def exchange(chunk, length):
            boxes[(replica + 1) % replicas].put(chunk.copy())
            sent[replica].append(chunk.nbytes)
            received = boxes[replica].get(timeout=20)
            assert len(received) == length
            return received

        return ring.all_reduce(vectors[replica], replica, replicas, exchange, sample or [0] * replicas)

    with concurrent.futures.ThreadPoolExecutor(replicas) as threads:
        return list(threads.map(work, range(replicas))), sent


@pytest.mark.parametrize("replicas, length", [(2, 2), (3, 10), (5, 23), (8, 8)])
def test_each_replica_has_the_sum_after_2_n_minus_1_messages(replicas, length):
    generator = np.random.default_rng(0)
    vectors = [generator.normal(size=length).astype(np.float32) for _ in range(replicas)]
    found, sent = run(vectors)
    for (total, values, seconds), before, messages in zip(found, vectors, sent, strict=True):
        np.testing.assert_allclose(total, np.sum(vectors, axis=0), rtol=1e-5, atol=1e-6)
        assert values.shape == (2 * replicas - 1, replicas) and len(seconds) == len(messages) == 2 * (replicas - 1)
        # 2 (N - 1) / N times the vector, up to the length of the chunks.
        assert abs(sum(messages) - 2 * (replicas - 1) / replicas * 4 * length) <= 8 * replicas
        np.testing.assert_array_equal(values[0], [part[0] for part in np.array_split(before, replicas)])
    np.testing.assert_array_equal(found[0][0], found[-1][0])


def test_ring_refuses_a_connection_without_the_token():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as stranger, socket.create_connection(address) as neighbour:
            stranger.sendall(b"x" * 16)
            neighbour.sendall(b"0123456789abcdef" + b"chunk")
            with ring._accept(server, b"0123456789abcdef") as accepted:
                assert ring._receive(accepted, 5) == b"chunk"
            assert stranger.recv(1) == b""
