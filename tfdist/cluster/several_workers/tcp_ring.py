"""The all-reduce of CPU workers: a ring over TCP, which sends and receives large arrays in place.

TensorFlow's ring over gRPC copies each number into a message, a string, another message, and to its place. This ring
takes 0.4 times as long for a sum of 94 MB over two workers (docs/speed.md).

The algorithm is the ring of Patarasuk and Yuan (2009, doi:10.1016/j.jpdc.2008.09.002): a pack is cut into one chunk per
worker. Every worker sends to the next worker and receives from the previous one. In the first half of the hops, each
worker adds its own numbers to a chunk and passes it on; in the second half, the sums are passed on. The order of
additions depends only on the number of workers. One thread receives, another sends, in pieces that fit into the cache.

A step's graph starts each pack as soon as its gradients are computed, without waiting, and waits after the last start.
"""

import contextlib
import dataclasses
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.control import heartbeat_monitor
from tfdist.cluster.control import listener as listener_lib
from tfdist.cluster.control.keys import Key
from tfdist.cluster.discovery import hostlist

_PIECE_BYTES = 1 << 19
# TensorFlow uses an array without a copy if its address is a multiple of this.
_ALIGNMENT = 64
# Idle seconds before TCP sends keepalive probes.
_KEEPALIVE_SECONDS = 60
_HEADER = struct.Struct("<QQ")  # The number of a pack, and its size in bytes.
# Seconds in which a connection must authenticate.
_AUTHENTICATION_SECONDS = 2.0
# What the two sides sign: the nonce of the worker that reads the signature.
_TO, _FROM = b"ring to %s", b"ring from %s"
_SWITCH_SECONDS = 2e-4
# Smaller arrays are copied next to each other, to avoid small pieces.
_COPIED_BYTES = 1 << 16
# Maximum number of pack sizes whose buffers are kept: gradients of embedding tables may have any size.
_MAX_SIZES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Pack:
    """Arrays of one dtype, and a buffer for their sums."""

    # How many packs were started before it.
    number: int
    sums: np.ndarray
    # The parts of the buffer, in the shapes of the arrays.
    views: list[np.ndarray]
    # (offset of the sums in the buffer, this worker's numbers [n]); these are in an array or in the buffer itself.
    inputs: list[tuple[int, np.ndarray]]

    def header(self) -> bytes:
        """Returns the start of the pack on the wire, by which workers detect that their packs differ."""
        return _HEADER.pack(self.number, self.sums.nbytes)

    def pieces(self, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields pieces from `first` to `last`: this worker's numbers, and the place of their sums."""
        step = _PIECE_BYTES // self.sums.itemsize
        for start, numbers in self.inputs:
            begin, end = max(first, start), min(last, start + len(numbers))
            for i in range(begin, end, step):
                stop = min(i + step, end)
                yield numbers[i - start : stop - start], self.sums[i:stop]


class TcpRing:
    """Sums tensors over all workers, with one replica on each.

    Args:
        rank: of this worker.
        num_workers: at least 2.
        to_next: a connection to the worker `rank + 1`, or to worker 0.
        from_previous: a connection from the previous worker.
    """

    # TensorFlow sums bfloat16 and float16, which NumPy adds 14 and 50 times more slowly than float32.
    DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64)

    def __init__(self, rank: int, num_workers: int, to_next: socket.socket, from_previous: socket.socket):
        self._rank, self._num_workers = rank, num_workers
        self._to_next, self._from_previous = to_next, from_previous
        self._packs: queue.SimpleQueue[_Pack] = queue.SimpleQueue()
        self._pieces: queue.SimpleQueue[bytes | memoryview | _Pack] = queue.SimpleQueue()
        # Number of packs started. A variable, because TensorFlow keeps the order of its reads and assignments, also in
        # functions, branches and loops: all workers start the packs of all sums in the same order.
        self.count = tf.Variable(0, trainable=False, dtype=tf.int64, name="packs")
        # Packs that have been completely received or completely sent, but not both.
        self._one_way_done: set[int] = set()
        # Sums of finished packs by number, and the error after which there are no more.
        self._sums: dict[int, list[np.ndarray]] = {}
        self._error: BaseException | None = None
        self._reason = ""
        self._changed = threading.Condition()
        # Buffers by size in bytes. A buffer is free when TensorFlow holds no sum in it.
        self._buffers: dict[int, list[np.ndarray]] = {}
        # Otherwise, threads that run Python code keep the GIL for 5 ms each time a piece arrives.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        for work, other in ((self._reduce_packs, rank - 1), (self._send_pieces, rank + 1)):
            arguments = (work, other % num_workers)
            threading.Thread(target=self._run, args=arguments, name=f"tfdist {work.__name__}", daemon=True).start()

    def sum(self, tensors: Sequence[tf.Tensor], bytes_per_pack: int) -> list[tf.Tensor]:
        """Returns the sums over all workers; all workers call it in the same order.

        Args:
            tensors: of one dtype in `DTYPES` and any shapes, equal on all workers.
            bytes_per_pack: see `config.communication.bytes_per_pack`; 0: one pack.
        """
        packs = _packs(tensors, bytes_per_pack)
        numbers = [self.count.read_value()]
        for pack in packs:
            numbers += _call(self._start, [numbers[-1], *(tensors[i] for i in pack)], [tf.int64])
        # Wait only after all packs have started: there may be only one thread.
        last = self.count.assign(numbers[-1], read_value=True)
        sums: list[Any] = [None] * len(tensors)
        for number, pack in zip(numbers, packs, strict=False):
            last, *found = _call(self._wait, [number, last], [tf.int64, *(tensors[i].dtype for i in pack)])
            for i, total in zip(pack, found, strict=True):
                sums[i] = tf.ensure_shape(total, tensors[i].shape)
        return sums

    def _start(self, number: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        """Starts pack `number`, and returns the next number."""
        itemsize = arrays[0].dtype.itemsize
        # In elements, rounded up so that each array begins at an aligned address.
        lengths = [-(-one.size * itemsize // _ALIGNMENT) * _ALIGNMENT // itemsize for one in arrays]
        sums = self._free_buffer(sum(lengths) * itemsize).view(arrays[0].dtype)
        pack = _Pack(int(number), sums, [], [])
        copied = end = 0
        for one, length in zip(arrays, lengths, strict=True):
            start, end = end, end + length
            pack.views.append(sums[start : start + one.size].reshape(one.shape))
            if one.nbytes < _COPIED_BYTES:
                np.copyto(pack.views[-1], one)
                sums[start + one.size : end] = 0
                continue
            pack.inputs.extend([(copied, sums[copied:start]), (start, one.reshape(-1))])
            copied = end
        pack.inputs.append((copied, sums[copied:end]))
        self._packs.put(pack)
        return number + 1

    def _wait(self, number: np.ndarray, _: np.ndarray) -> list[np.ndarray]:
        started = int(number)
        with self._changed:
            self._changed.wait_for(lambda: started in self._sums or self._error is not None)
            if started not in self._sums:
                raise ConnectionError(f"the ring of worker {self._rank} is broken: {self._reason}") from self._error
            return [number, *self._sums.pop(started)]

    def _free_buffer(self, size: int) -> np.ndarray:
        """Returns a free buffer: uint8 [size] at an aligned address."""
        if len(self._buffers) > _MAX_SIZES:
            self._buffers.clear()
        kept = self._buffers.setdefault(size, [])
        free = (index for index in range(len(kept)) if _references(kept, index) == _FREE)
        if (index := next(free, None)) is None:
            index = len(kept)
            kept.append(np.empty(size + _ALIGNMENT, np.uint8))
        memory = kept[index]
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + size]

    def _reduce_packs(self) -> None:
        received = np.empty(_PIECE_BYTES, np.uint8)
        pack: _Pack | None = None
        while True:
            if pack is None:
                pack = self._packs.get()
                self._send_own(pack)
            pack = self._reduce(pack, received)

    def _chunk(self, pack: _Pack, distance: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the pieces of the chunk that began `distance` workers before this one; see `_Pack.pieces`."""
        i, size, length = (self._rank - distance) % self._num_workers, self._num_workers, len(pack.sums)
        return pack.pieces(length * i // size, length * (i + 1) // size)

    def _send_own(self, pack: _Pack) -> None:
        self._pieces.put(pack.header())
        for numbers, _ in self._chunk(pack, 0):
            self._pieces.put(_bytes(numbers))

    def _reduce(self, pack: _Pack, received: np.ndarray) -> _Pack | None:
        """Receives and passes on all chunks of a pack; returns the next pack if it was started meanwhile."""
        found = bytearray(_HEADER.size)
        self._receive(memoryview(found))
        if found != pack.header():
            (number, theirs), (_, ours) = _HEADER.unpack(found), _HEADER.unpack(pack.header())
            raise ValueError(
                f"{heartbeat_monitor.DIFFERENT_GRAPHS}: in pack {number} worker {(self._rank - 1) % self._num_workers} "
                f"sums {theirs} bytes, worker {self._rank} {ours}. Models, losses and steps must be the same on all "
                "workers"
            )
        following, last = None, 2 * self._num_workers - 3
        for hop in range(last + 1):
            if hop == last:
                self._pieces.put(pack)
                with contextlib.suppress(queue.Empty):  # Else the link is idle while the last chunk is received.
                    following = self._packs.get_nowait()
                    self._send_own(following)
            for numbers, sums in self._chunk(pack, hop + 1):
                if hop < self._num_workers - 1:
                    part = received[: numbers.nbytes].view(numbers.dtype)
                    self._receive(_bytes(part))
                    np.add(part, numbers, out=sums)
                else:
                    self._receive(_bytes(sums))
                if hop < last:
                    self._pieces.put(_bytes(sums))
        self._note_one_way_done(pack)
        return following

    def _note_one_way_done(self, pack: _Pack) -> None:
        """Notes that a pack has been received completely, or sent completely; after both, its sums may be used."""
        with self._changed:
            if pack.number not in self._one_way_done:
                self._one_way_done.add(pack.number)
                return
            self._one_way_done.remove(pack.number)
            self._sums[pack.number] = pack.views
            self._changed.notify_all()

    def _receive(self, view: memoryview) -> None:
        while view:
            count = self._from_previous.recv_into(view, 0, socket.MSG_WAITALL)
            if count == 0:
                raise EOFError(f"worker {(self._rank - 1) % self._num_workers} has closed its connection")
            view = view[count:]

    def _send_pieces(self) -> None:
        while True:
            piece = self._pieces.get()
            if isinstance(piece, _Pack):
                self._note_one_way_done(piece)
            else:
                self._to_next.sendall(piece)

    def close(self) -> None:
        """Closes the connections; after this, sums on this worker and its neighbours fail."""
        for one in (self._to_next, self._from_previous):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _run(self, work: Callable[[], None], other: int) -> None:
        try:
            with np.errstate(all="ignore"):  # A sum may be infinite or NaN; a warning could be an error in a script.
                work()
        except BaseException as error:  # A broken connection: heartbeats name a lost worker.
            is_broken = isinstance(error, OSError | EOFError)
            with self._changed:
                self._error = self._error or error
                self._reason = self._reason or (
                    heartbeat_monitor.BROKEN_RING.format(other, error) if is_broken else str(error)
                )
            if not is_broken:  # Before the others see a closed connection.
                heartbeat_monitor.announce_failure(str(error))
            with self._changed:
                self._changed.notify_all()
            self.close()


def _references(kept: list[np.ndarray], index: int) -> int:
    return sys.getrefcount(kept[index])


# References to a buffer that only the list holds; the number depends on Python's release.
_FREE = _references([np.empty(0)], 0)


def _bytes(numbers: np.ndarray) -> memoryview:
    return memoryview(numbers.view(np.uint8))


def _packs(tensors: Sequence[tf.Tensor], bytes_per_pack: int) -> list[list[int]]:
    """Returns the indices of the tensors of each pack, the last tensors first: their gradients are ready first.

    The first pack has a quarter of the bytes, so that it is sent early, as in PyTorch's DDP.
    """
    packs: list[list[int]] = [[]]
    size, most = 0, bytes_per_pack // 4
    for i in reversed(range(len(tensors))):
        if packs[-1] and bytes_per_pack and size >= most:
            packs.append([])
            size, most = 0, bytes_per_pack
        packs[-1].append(i)
        size += (tensors[i].shape.num_elements() or 0) * tensors[i].dtype.size
    return [pack for pack in packs if pack]


def _call(function: Callable[..., Any], inputs: list[tf.Tensor], dtypes: list[tf.DType]) -> list[tf.Tensor]:
    """Calls a function of the ring from a graph, as a stateless operation.

    TensorFlow runs stateful operations in program order: then no pack would start before the last gradient is
    computed.
    """
    stateful = tf.executing_eagerly()
    return tf.nest.flatten(tf.numpy_function(function, inputs, dtypes, stateful=stateful))


def listen() -> tuple[socket.socket, dict[str, Any]]:
    """Opens any free port, to which the previous worker connects; also returns what the other workers must know."""
    listener = listener_lib.listen(0)
    return listener, {"ring_port": listener.getsockname()[1], "ring_nonce": secrets.token_hex(16)}


def connect(
    rank: int, members: Sequence[Mapping[str, Any]], listener: socket.socket, key: Key, seconds: float
) -> TcpRing:
    """Connects to the next worker, and waits for the previous one; all workers call it at about the same time.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`, with what `listen` returned on each.
        key: authenticates both sides. The data itself is not signed, just as with gRPC.
        seconds: time limit of the whole call.

    Raises:
        OSError: no connection in time, or the other side is not authenticated.
    """
    until = time.monotonic() + seconds
    size = len(members)
    after, before, nonce = members[(rank + 1) % size], members[(rank - 1) % size], members[rank]["ring_nonce"]
    address = (hostlist.split_address(after["address"])[0], after["ring_port"])
    to_next = socket.create_connection(address, timeout=seconds)
    to_next.sendall(key.sign(_TO % after["ring_nonce"].encode()))
    from_previous = _accept(listener, key, _TO % nonce.encode(), until)
    from_previous.sendall(key.sign(_FROM % before["ring_nonce"].encode()))
    if not _is_authenticated(to_next, key, _FROM % nonce.encode(), until):
        raise ConnectionError(f"the port {address[1]} of worker {after['rank']} has no key of this job")
    for one in (to_next, from_previous):
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # During a long evaluation on the chief, cloud firewalls drop connections idle for 350 s, without a reset.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    return TcpRing(rank, size, to_next, from_previous)


def _accept(listener: socket.socket, key: Key, proof: bytes, until: float) -> socket.socket:
    """Returns the first authenticated connection. Each has two seconds: other programs may connect and send nothing."""
    with listener:
        while True:
            listener.settimeout(max(0.01, until - time.monotonic()))
            found, _ = listener.accept()
            if _is_authenticated(found, key, proof, min(until, time.monotonic() + _AUTHENTICATION_SECONDS)):
                return found
            found.close()


def _is_authenticated(found: socket.socket, key: Key, proof: bytes, until: float) -> bool:
    """Returns whether the other side sends the signature of `proof` in time."""
    received, size = b"", len(key.sign(proof))
    with contextlib.suppress(OSError):
        while len(received) < size:
            found.settimeout(max(0.01, until - time.monotonic()))
            more = found.recv(size - len(received))
            if not more:
                break
            received += more
    return key.verify(proof, received)
