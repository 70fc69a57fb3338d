"""A ring all-reduce by hand, message by message, of the gradients of a config: `tfdist all_reduce --ring`.

For teaching only: no training uses it. Its sums are compared with those of TensorFlow's collectives. Each replica sends
chunks of its gradient to the next one, over a TCP connection. Algorithm: Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).
"""

import concurrent.futures
import contextlib
import dataclasses
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import config as config_lib
from tfdist.cluster.control import listener
from tfdist.cluster.discovery import environment, hostlist
from tfdist.tools import measure as measure_lib
from tfdist.tools import tables
from tfdist.tools.pictures import style

HEADER = ("phase", "step", "replica", "chunk_sent", "chunk_received", "bytes_sent", "ms", "value_after")
PHASES = ("reduce-scatter", "all-gather")
# Repetitions of the ring; the times are medians. Seconds after which a missing neighbour is an error.
_REPEATS, _SECONDS = 5, 60.0
_TOKEN_BYTES = 16
# In the picture: the most replicas that fit onto a page, and the number of panels side by side.
MAX_DRAWN, _COLUMNS = 8, 4
# Sends one chunk to the next replica, and returns that of the previous one: float32 [n] -> float32 [the given length].
Exchange = Callable[[np.ndarray, int], np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The chunks of each of N replicas after each step, represented by the element with the largest sum."""

    # float64 [replica, 2 N - 1, chunk]: before the first step and after each.
    values: np.ndarray
    # float64 [replica, 2 N - 2]: of each step, with waiting for the neighbours.
    seconds: np.ndarray
    # Bytes of each chunk.
    chunk_bytes: tuple[int, ...]
    # Largest difference between the ring's sums and TensorFlow's, relative to the largest sum.
    difference: float

    @property
    def replicas(self) -> int:
        """The number of replicas, which is that of the chunks."""
        return len(self.chunk_bytes)

    def bytes_sent(self, replica: int) -> int:
        """Bytes that a replica has sent in all steps."""
        steps = range(2 * (self.replicas - 1))
        return sum(self.chunk_bytes[chunks_of_step(replica, step, self.replicas)[0]] for step in steps)


def chunks_of_step(replica: int, step: int, replicas: int) -> tuple[int, int]:
    """Returns the chunks that a replica sends and receives in a step, 0 .. 2 (replicas - 1) - 1."""
    first, place = (replica, step) if step < replicas - 1 else (replica + 1, step - replicas + 1)
    return (first - place) % replicas, (first - place - 1) % replicas


def all_reduce(
    vector: np.ndarray, replica: int, replicas: int, exchange: Exchange, sample: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums a vector over the replicas: reduce-scatter, then all-gather.

    Args:
        vector: of this replica, float32 [n]; it is not changed.
        replica: 0 .. replicas - 1.
        replicas: their number, at least 2.
        exchange: with the neighbours.
        sample: an element of each chunk that is recorded.

    Returns:
        The sum, float32 [n]; the recorded elements, float64 [2 replicas - 1, chunk]; seconds, float64 [2 replicas - 2].
    """
    chunks = [part.copy() for part in np.array_split(vector, replicas)]
    values, seconds = [], []

    def record() -> None:
        values.append([float(chunk[place]) for chunk, place in zip(chunks, sample, strict=True)])

    record()
    for step in range(2 * (replicas - 1)):
        send, receive = chunks_of_step(replica, step, replicas)
        started = time.perf_counter()
        received = exchange(chunks[send], len(chunks[receive]))
        if step < replicas - 1:
            chunks[receive] += received
        else:
            chunks[receive] = received
        seconds.append(time.perf_counter() - started)
        record()
    return np.concatenate(chunks), np.array(values), np.array(seconds)


def measure(run: Any) -> Record:
    """Runs the ring over all replicas, with the gradients of the first batch. Collective: all workers call it.

    Args:
        run: a `tfdist.training.run.Run` on several replicas.

    Raises:
        OSError: a replica cannot connect to the next one.
    """
    cluster = run.cluster
    own, total = own_gradients(run)
    sizes = [len(part) for part in np.array_split(total, cluster.num_replicas)]
    sample = [int(np.argmax(np.abs(part))) for part in np.array_split(total, cluster.num_replicas)]
    first = cluster.rank * len(own)

    def work(index: int, exchange: Exchange) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = [all_reduce(own[index], first + index, cluster.num_replicas, exchange, sample) for _ in range(_REPEATS)]
        return found[0][0], found[0][1], np.median([seconds for _, _, seconds in found], axis=0)

    with _exchanges(cluster, len(own)) as exchanges, concurrent.futures.ThreadPoolExecutor(len(own)) as threads:
        results = list(threads.map(work, range(len(own)), exchanges))
    apart = max(float(np.abs(summed - total).max()) for summed, _, _ in results) / float(np.abs(total).max() or 1.0)
    steps = 2 * cluster.num_replicas - 2
    rows = cluster.all_gather([float(x) for _, v, s in results for x in (*s, *v.ravel())]).reshape(
        cluster.num_replicas, -1
    )
    return Record(
        values=rows[:, steps:].reshape(cluster.num_replicas, steps + 1, cluster.num_replicas),
        seconds=rows[:, :steps],
        chunk_bytes=tuple(4 * size for size in sizes),
        difference=float(cluster.all_gather([apart]).max()),
    )


def own_gradients(run: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the gradient of each replica of this worker for its part of the first batch, and their sum by TensorFlow.

    Float32 [parameters] each, all variables one after another. Collective.
    """
    import tensorflow as tf

    from tfdist.training.step.random_numbers import seed_generators, stateful_random
    from tfdist.training.step.updates import all_reduce

    words = seed_generators.step_as_int32_pair(run.context.step_count)

    def replica(*shard: Any) -> tuple[tf.Tensor, tf.Tensor]:
        found = run.objective.forward_backward(shard[0] if len(shard) == 1 else shard, 1.0).gradients
        found = [each for each in found if each is not None]
        flat = tf.concat([tf.reshape(tf.cast(tf.convert_to_tensor(each), tf.float32), [-1]) for each in found], axis=0)
        return flat, all_reduce.sum_over_replicas([flat], config_lib.Communication())[0]

    @tf.function(autograph=False)
    def call(iterator: Any) -> tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
        elements = next(iterator)
        counted = seed_generators.use_count_of_loop(words, tf.zeros([], tf.int32), lambda: 0)
        with counted, stateful_random.draw_statelessly():
            args = elements if isinstance(elements, tuple) else (elements,)
            found = run.cluster.strategy.run(replica, args=args)
        return tuple(run.cluster.strategy.experimental_local_results(each) for each in found)

    own, total = call(run.feed.open_training(0, 1))
    return [each.numpy() for each in own], total[0].numpy()


def rows(record: Record) -> list[tuple]:
    """Rows of `HEADER`: each step of each replica; "value_after" is the element of the chunk that it received."""
    found = []
    for step in range(2 * (record.replicas - 1)):
        for replica in range(record.replicas):
            send, receive = chunks_of_step(replica, step, record.replicas)
            phase, number = divmod(step, record.replicas - 1)
            ms = round(1e3 * float(record.seconds[replica, step]), 4)
            after = float(record.values[replica, step + 1, receive])
            found.append((PHASES[phase], number + 1, replica, send, receive, record.chunk_bytes[send], ms, after))
    return found


def show(record: Record, by_tensorflow: float, name: str, workdir: Path) -> None:
    """Prints, writes and draws the steps of a ring all-reduce by hand.

    Args:
        record: of the steps.
        by_tensorflow: seconds of TensorFlow's all-reduce of as many bytes.
        name: of the config.
        workdir: of the results.
    """
    lines = rows(record)
    tables.write_csv(workdir / "ring.csv", HEADER, lines)
    size, sent = sum(record.chunk_bytes), record.bytes_sent(0)
    mine = [row for row in lines if row[2] == 0]
    print(tables.text(HEADER, mine))
    seconds = float(np.median(record.seconds, axis=0).sum())
    text = (
        f"ring: {len(mine)} messages of a replica, {sent / size:.4g} x the {size:,} bytes of its gradients, "
        f"{1e3 * seconds:.3g} ms by hand over TCP, {1e3 * by_tensorflow:.3g} ms by TensorFlow; the sums differ by at "
        f"most {record.difference:.1g} of the largest"
    )
    print(text)
    if record.replicas > MAX_DRAWN:
        print(f"no picture of the ring: {record.replicas} replicas, more than {MAX_DRAWN}")
        return
    caption = (
        f"{name}, gradients of the first batch, one element of each chunk; frame: just received; "
        f"time: median of the replicas, line from the fastest to the slowest. {text[0].upper()}{text[1:]}. "
        f"{measure_lib.machine()}"
    )
    print(style.save(workdir / "ring", lambda: draw(record, caption=caption)))


@contextlib.contextmanager
def _exchanges(cluster: Any, count: int) -> Iterator[list[Exchange]]:
    """Connects each of the `count` replicas of this worker with its neighbours, for the time of the block."""
    options = config_lib.ClusterOptions()
    spec = environment.resolve(os.environ, port_base=options.port_base, port_count=options.port_count)
    alone = cluster.num_workers == 1
    token = cluster.broadcast_bytes(secrets.token_bytes(_TOKEN_BYTES))
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(listener.listen(0)) for _ in range(count)]
        ports = cluster.all_gather([server.getsockname()[1] for server in servers]).ravel()
        hosts = ["127.0.0.1"] if alone else _hosts(cluster, spec)
        outgoing, incoming = [], []
        for index in range(count):
            following = (cluster.rank * count + index + 1) % cluster.num_replicas
            there = (hosts[following // count], int(ports[following]))
            outgoing.append(stack.enter_context(socket.create_connection(there, timeout=_SECONDS)))
            outgoing[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outgoing[-1].sendall(token)
        for server in servers:
            incoming.append(stack.enter_context(_accept(server, token)))
        senders = stack.enter_context(concurrent.futures.ThreadPoolExecutor(count))
        yield [_exchange(*each, senders) for each in zip(outgoing, incoming, strict=True)]


def _hosts(cluster: Any, spec: Any) -> list[str]:
    """Returns a host name or address of each worker."""
    if spec.addresses:
        return [hostlist.split_address(address)[0] for address in spec.addresses]
    return cluster.all_gather_text(socket.gethostname())


def _accept(server: socket.socket, token: bytes) -> socket.socket:
    """Returns the connection of the previous replica, which proves by the token that it belongs to this job."""
    server.settimeout(_SECONDS)
    while True:
        connection, _ = server.accept()
        connection.settimeout(_SECONDS)
        if hmac.compare_digest(_receive(connection, len(token)), token):
            return connection
        connection.close()


def _exchange(
    following: socket.socket, previous: socket.socket, senders: concurrent.futures.ThreadPoolExecutor
) -> Exchange:
    """Returns the function that sends to one connection while it receives from the other."""

    def exchange(chunk: np.ndarray, length: int) -> np.ndarray:
        sent = senders.submit(following.sendall, chunk.tobytes())
        received = np.frombuffer(_receive(previous, 4 * length), np.float32).copy()
        sent.result()
        return received

    return exchange


def _receive(connection: socket.socket, count: int) -> bytes:
    """Returns `count` bytes, or fewer if the connection is closed."""
    content = bytearray(count)
    view, place = memoryview(content), 0
    while place < count:
        got = connection.recv_into(view[place:])
        if not got:
            return bytes(content[:place])
        place += got
    return bytes(content)


def draw(record: Record, *, caption: str) -> Any:
    """Returns a figure: the chunks before the first step and after each, a panel each, and the time of the steps.

    A row of a panel is a replica, a column a chunk. The colour of a cell says how many replicas are in its sum, and a
    frame that it has just arrived. Up to four replicas, the reduce-scatter is above and the all-gather below.

    Args:
        record: of at most `MAX_DRAWN` replicas.
        caption: what was run where.
    """
    count = record.replicas
    columns = min(count, _COLUMNS)
    rows = -(-2 * count // columns)
    width, height = max(3.1, 0.6 * count), max(3.4, 0.45 * count + 1.0)
    size = (max(12.5, columns * width), rows * height)
    figure, panels = style.figure(
        f"A ring all-reduce over {count} replicas", caption, columns=columns, rows=rows, size=size
    )
    times = panels.pop(count if rows == 2 else 2 * count - 1)
    contributions = _contributions(count)
    for step, axes in enumerate(panels[: 2 * count - 1]):
        image = _draw_chunks(axes, record, step, contributions[step])
        if axes.get_subplotspec().is_first_col() or (rows == 2 and step == count):
            axes.set_ylabel("replica")
    for axes in panels[2 * count - 1 :]:
        axes.set_visible(False)
    _draw_times(times, record)
    bar = figure.colorbar(image, ax=[*panels, times], ticks=range(1, count + 1), pad=0.01, fraction=0.02)
    bar.set_label("replicas in the sum")
    return figure


def _contributions(count: int) -> np.ndarray:
    """Returns how many replicas are in the sum of each chunk, int64 [2 N - 1, replica, chunk]."""
    states = [np.ones((count, count), np.int64)]
    for step in range(2 * (count - 1)):
        before, after = states[-1], states[-1].copy()
        for replica in range(count):
            _, received = chunks_of_step(replica, step, count)
            more = before[(replica - 1) % count, received]
            after[replica, received] = more + (before[replica, received] if step < count - 1 else 0)
        states.append(after)
    return np.array(states)


def _draw_chunks(axes: Any, record: Record, step: int, contributions: np.ndarray) -> Any:
    """Draws the chunks of all replicas after `step` steps; returns the image, for the colour bar."""
    from matplotlib.patches import Rectangle

    count = record.replicas
    image = axes.imshow(contributions, cmap=style.SURFACE, vmin=1, vmax=count, aspect="auto")
    font = 11 if count <= 4 else 8
    for replica in range(count):
        for chunk in range(count):
            color = "black" if contributions[replica, chunk] > (1 + count) / 2 else "white"
            text = f"{record.values[replica, step, chunk]:.2g}"
            axes.text(chunk, replica, text, ha="center", va="center", color=color, fontsize=font)
        if step:
            _, received = chunks_of_step(replica, step - 1, count)
            look = {"fill": False, "edgecolor": style.COLORS[1], "linewidth": 3.0}
            axes.add_patch(Rectangle((received - 0.46, replica - 0.46), 0.92, 0.92, **look))
    for edge in np.arange(0.5, count - 1):
        axes.axhline(edge, color="white", linewidth=1.0)
        axes.axvline(edge, color="white", linewidth=1.0)
    axes.set_xticks(range(count), [f"{chunk}" for chunk in range(count)])
    axes.set_yticks(range(count))
    axes.set_xlabel("chunk")
    axes.grid(visible=False)
    if step == 0:
        axes.set_title("Own gradients")
        return image
    phase, number = divmod(step - 1, count - 1)
    axes.set_title(f"{PHASES[phase].capitalize()} {number + 1}")
    return image


def _draw_times(axes: Any, record: Record) -> None:
    """Draws the time of each step: the median of the replicas as a bar, from the fastest to the slowest as a line."""
    times = 1e3 * record.seconds
    steps = np.arange(1, times.shape[1] + 1)
    middle = np.median(times, axis=0)
    half = record.replicas - 1
    for part, (name, color) in enumerate(zip(PHASES, (style.COLORS[0], style.COLORS[4]), strict=True)):
        chosen = slice(part * half, (part + 1) * half)
        axes.bar(steps[chosen], middle[chosen], color=color, label=name)
    lower, upper = middle - times.min(axis=0), times.max(axis=0) - middle
    axes.errorbar(steps, middle, yerr=[lower, upper], fmt="none", ecolor="black", elinewidth=1.3)
    axes.set(title="Time of each step", xlabel="step", ylabel="milliseconds")
    axes.set_ylim(0, 1.45 * float(times.max()))
    axes.set_xticks(steps)
    axes.legend(loc="upper left", fontsize=10)
