"""The ring over TCP: real connections between the threads of one process."""

import concurrent.futures
import contextlib
import json
import socket
import sys
import time
import warnings

import forked
import numpy as np
import pytest
import tensorflow as tf
from launching import run_all, worker_environment

from tfdist.cluster.control.keys import Key
from tfdist.cluster.several_workers import tcp_ring

KEY = Key(b"0123456789abcdef")


def listening(count):
    """Ports of this machine, and their workers as the rendezvous returns them."""
    listeners, known = zip(*(tcp_ring.listen() for _ in range(count)), strict=True)
    return listeners, [{"rank": rank, "address": "127.0.0.1:1", **one} for rank, one in enumerate(known)]


@contextlib.contextmanager
def rings(count, key=KEY):
    """Connected rings of `count` workers."""
    interval = tcp_ring.sys.getswitchinterval()
    listeners, members = listening(count)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        connected = [pool.submit(tcp_ring.connect, rank, members, listeners[rank], key, 30.0) for rank in range(count)]
        made = [one.result() for one in connected]
        try:
            yield made, pool
        finally:
            for one in made:
                one.close()
            tcp_ring.sys.setswitchinterval(interval)


# Sums in loops, branches and functions, with one thread for ops. Some are independent of each other.
GRAPHS = """
import json, socket, sys, time
import tensorflow as tf
from tfdist.cluster.several_workers import tcp_ring
rank, size = (int(value) for value in sys.argv[1:])
tf.config.threading.set_inter_op_parallelism_threads(1)
listener, to = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
listener.bind(f"worker{rank}")
listener.listen()
while to.connect_ex(f"worker{(rank + 1) % size}"):
    time.sleep(0.01)
ring = tcp_ring.TcpRing(rank, size, to, listener.accept()[0])
weights = tf.Variable(tf.ones([1000]))
counted = tf.Variable(0, dtype=tf.int64)

@tf.function
def train(steps):
    for step in tf.range(steps):
        own = weights * float(rank + 1)
        first, second = ring.sum([own, own[:10] + 1], 16)
        counted.assign_add(ring.sum([tf.cast(step, tf.int64)], 0)[0])
        if step % 2 == 0:
            change = ring.sum([own * 2], 0)[0] + first
        else:
            change = ring.sum([own, own[:1]], 16)[1] - ring.sum([own[:1]], 0)[0]
        mapped = tf.map_fn(lambda one: ring.sum([one], 0)[0], tf.range(8.0) + second[0])
        weights.assign(weights + 1e-3 * change + 1e-6 * tf.reduce_sum(mapped))

train(20)
train(5)
print(json.dumps([weights.numpy()[:2].tolist(), int(counted), int(ring.count)]))
"""


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("dtype", tcp_ring.TcpRing.DTYPES, ids=lambda dtype: dtype.name)
def test_every_worker_has_the_sums_of_all(count, dtype):
    shapes = [(3, 5), (), (0, 4), (1,), (400_001,), (7, 1, 2)]
    rows = np.random.default_rng(0)
    values = [[tf.cast(rows.integers(-8, 8, shape), dtype) for shape in shapes] for _ in range(count)]
    expected = [sum(tf.cast(one[i], tf.float64) for one in values) for i in range(len(shapes))]
    with rings(count) as (made, pool):
        for bytes_per_pack in (0, 64, 1_000_000):
            # Not in graphs: those of all workers would wait in the threads of one process.
            found = list(pool.map(lambda ring, own, size=bytes_per_pack: ring.sum(own, size), made, values))
            for sums in found:
                for total, exact, shape in zip(sums, expected, shapes, strict=True):
                    assert total.dtype == dtype and total.shape == shape
                    np.testing.assert_array_equal(tf.cast(total, tf.float64), exact)


@pytest.mark.slow
def test_sums_of_loops_and_branches_keep_the_order_of_the_program(tmp_path, count=3):
    program = tmp_path / "graphs.py"  # AutoGraph reads the source of a function.
    program.write_text(GRAPHS)
    commands = [[sys.executable, str(program), str(rank), str(count)] for rank in range(count)]
    outputs = run_all(commands, [worker_environment(**{forked.OPTIMIZE: "1"})] * count, timeout=200, cwd=tmp_path)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    weight, total = 1.0, sum(rank + 1 for rank in range(count))
    for step in [*range(20), *range(5)]:
        mapped = 8 * (weight * total + count) * count + 28 * count
        weight += 1e-3 * (3 * weight * total if step % 2 == 0 else 0) + 1e-6 * mapped
    for weights, counted, packs in found:
        np.testing.assert_allclose(weights, [weight] * 2, rtol=1e-5)
        # 190 and 10 are the sums of the steps of both calls.
        assert counted == 200 * count and packs == 25 * (2 + 1 + 8) + 13 + 12 * 3
    assert found[1:] == found[:-1]


def test_a_buffer_is_used_again_when_nothing_holds_it_and_not_before():
    """As many references as a buffer has that nothing holds: the number is that of this release of Python."""
    with rings(2) as (made, pool):
        kept = []
        for step in range(5):
            own = [tf.fill([1000], float(step))] * 2
            kept.append(list(pool.map(lambda ring, one: ring.sum([one], 0)[0], made, own)))
        for step, both in enumerate(kept):
            np.testing.assert_array_equal(both, np.full((2, 1000), 2.0 * step, np.float32))
        first = made[0]._free_buffer(2000)
        at, part = first.ctypes.data, first[10:].view(np.int16)
        del first
        assert made[0]._free_buffer(2000).ctypes.data != at
        del part
        assert made[0]._free_buffer(2000).ctypes.data == at


def test_a_lost_worker_ends_the_sums_of_the_others():
    with rings(3) as (made, _):
        made[1].close()
        for ring in (made[0], made[2]):
            for _ in range(2):
                with pytest.raises(ConnectionError, match=r"the ring of worker \d is broken: "):
                    ring.sum([tf.ones([3_000_000])], 0)


def test_sums_that_are_infinite_or_nan_end_no_run_and_warn_of_nothing():
    values = [tf.constant([3e38, np.inf, np.nan]), tf.constant([3e38, -np.inf, 0.0])]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # As `python -W error` does.
        with rings(2) as (made, pool):
            for total in pool.map(lambda ring, own: ring.sum([own], 0)[0], made, values):
                np.testing.assert_array_equal(total, [np.inf, np.nan, np.nan])


def test_other_programs_are_passed_over_and_other_keys_are_refused():
    waiting, proof = socket.create_server(("127.0.0.1", 0)), KEY.sign(b"to nonce")
    with concurrent.futures.ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        accepting = pool.submit(tcp_ring._accept, waiting, KEY, b"to nonce", time.monotonic() + 100)
        strangers = [stack.enter_context(socket.create_connection(waiting.getsockname())) for _ in range(4)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        strangers[1].close()  # The third says nothing; the last one is a worker, whose words come in two parts.
        for part in (proof[:20], proof[20:]):
            strangers[3].sendall(part)
            time.sleep(0.2)
        found = stack.enter_context(accepting.result(timeout=60))
        assert found.getpeername() == strangers[3].getsockname()

        listeners, members = listening(2)
        ways = [(rank, members, listeners[rank], key, 1.0) for rank, key in enumerate((KEY, Key(b"o" * 20)))]
        for one in [pool.submit(tcp_ring.connect, *way) for way in ways]:
            with pytest.raises(OSError, match=r"timed out|has no key of this job"):
                one.result()


def test_connections_that_are_silent_for_long_are_kept_alive():
    with rings(2) as (made, _):
        for one in (made[0]._to_next, made[0]._from_previous):
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
