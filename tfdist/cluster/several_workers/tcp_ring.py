"""The all-reduce of workers on CPUs: a ring over TCP, whose connections read and write the numbers where they are.

TensorFlow's ring over gRPC copies each number into a message, into a string, into a message, and to its place. A sum of
94 MB by two workers takes 0.4 of its time here (docs/speed.md).

The algorithm is the ring of Patarasuk and Yuan (2009, doi:10.1016/j.jpdc.2008.09.002): a pack is cut into a chunk for
each worker. Every worker sends to the next one and receives from the one before. In the first half of the hops each
worker adds its own numbers to a chunk and passes it on, in the second half the sums are passed on. The order of the
additions depends on the number of workers only. A thread receives, another one sends, in pieces that stay in the cache.

A step's graph starts a pack as soon as its gradients are computed, which returns at once, and waits after the last.
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
# TensorFlow uses an array without a copy if it begins at such an address.
_ALIGNMENT = 64
# Seconds without data until TCP asks whether the other side is there.
_KEEPALIVE_SECONDS = 60
_HEADER = struct.Struct("<QQ")  # The number of a pack, and its bytes.
# Seconds in which a connection proves that it has the key.
_PROOF_SECONDS = 2.0
# What the two sides sign: the nonce of the one that reads it.
_TO, _FROM = b"ring to %s", b"ring from %s"
_SWITCH_SECONDS = 2e-4
# Smaller arrays are copied next to each other, so that pieces are not small.
_COPIED_BYTES = 1 << 16
# Different sizes of packs whose buffers are kept: gradients of tables may have any.
_MAX_SIZES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Pack:
    """Arrays of one dtype, and a buffer for their sums."""

    # How many have been started before it.
    number: int
    sums: np.ndarray
    # The parts of the buffer, in the shapes of the arrays.
    views: list[np.ndarray]
    # Where in the buffer sums begin, and this worker's numbers, [n], in the memory of an array or in the buffer itself.
    inputs: list[tuple[int, np.ndarray]]

    def header(self) -> bytes:
        """Returns the start of the pack on the wire, by which workers notice that they sum different packs."""
        return _HEADER.pack(self.number, self.sums.nbytes)

    def pieces(self, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields this worker's numbers and the places of their sums, from `first` to `last`, in pieces."""
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
        from_previous: a connection from the worker before.
    """

    # NumPy adds the others 14 and 50 times more slowly than float32: TensorFlow sums them.
    DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64)

    def __init__(self, rank: int, num_workers: int, to_next: socket.socket, from_previous: socket.socket):
        self._rank, self._num_workers = rank, num_workers
        self._to_next, self._from_previous = to_next, from_previous
        self._packs: queue.SimpleQueue[_Pack] = queue.SimpleQueue()
        self._pieces: queue.SimpleQueue[bytes | memoryview | _Pack] = queue.SimpleQueue()
        # Packs that have been started. TensorFlow keeps the order in which a program reads and assigns a variable, in
        # functions, branches and loops: so all workers start the packs of all sums in one order.
        self.count = tf.Variable(0, trainable=False, dtype=tf.int64, name="packs")
        # Packs that have been received or sent, and not both.
        self._halves: set[int] = set()
        # Sums of finished packs by their numbers, and why there will be no more.
        self._sums: dict[int, list[np.ndarray]] = {}
        self._error: BaseException | None = None
        self._why = ""
        self._changed = threading.Condition()
        # Buffers by their bytes. One is free when TensorFlow holds no sum in it.
        self._buffers: dict[int, list[np.ndarray]] = {}
        # Threads that compute in Python otherwise keep the lock for 5 ms each time that a piece has arrived.
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
        # Sums are waited for when all packs have been started: there may be one thread only.
        last = self.count.assign(numbers[-1], read_value=True)
        sums: list[Any] = [None] * len(tensors)
        for number, pack in zip(numbers, packs, strict=False):
            last, *found = _call(self._wait, [number, last], [tf.int64, *(tensors[i].dtype for i in pack)])
            for i, total in zip(pack, found, strict=True):
                sums[i] = tf.ensure_shape(total, tensors[i].shape)
        return sums

    def _start(self, number: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        """Starts the pack of this number, and returns the next number."""
        itemsize = arrays[0].dtype.itemsize
        # In elements: each array begins at an aligned address.
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
                raise ConnectionError(f"the ring of worker {self._rank} is broken: {self._why}") from self._error
            return [number, *self._sums.pop(started)]

    def _free_buffer(self, size: int) -> np.ndarray:
        """Returns uint8 [size] at an aligned address."""
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
        """Receives and passes on all chunks of a pack; returns the next pack if it has begun meanwhile."""
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
                with contextlib.suppress(queue.Empty):  # While the last chunk is received, the link would do nothing.
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
        self._record_half(pack)
        return following

    def _record_half(self, pack: _Pack) -> None:
        """Notes that all of a pack has been received, or sent; after both its sums may be used."""
        with self._changed:
            if pack.number not in self._halves:
                self._halves.add(pack.number)
                return
            self._halves.remove(pack.number)
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
                self._record_half(piece)
            else:
                self._to_next.sendall(piece)

    def close(self) -> None:
        """Closes the connections: sums of this worker and of its neighbours fail from now on."""
        for one in (self._to_next, self._from_previous):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _run(self, work: Callable[[], None], other: int) -> None:
        try:
            with np.errstate(all="ignore"):  # A sum may be infinite or NaN; a warning could be an error in a script.
                work()
        except BaseException as error:  # Of the connection: the heartbeats name the worker that is lost, if one is.
            is_broken = isinstance(error, OSError | EOFError)
            with self._changed:
                self._error = self._error or error
                self._why = self._why or (
                    heartbeat_monitor.BROKEN_RING.format(other, error) if is_broken else str(error)
                )
            if not is_broken:  # Before the others see a closed connection.
                heartbeat_monitor.announce_failure(str(error))
            with self._changed:
                self._changed.notify_all()
            self.close()


def _references(kept: list[np.ndarray], index: int) -> int:
    return sys.getrefcount(kept[index])


# Of a buffer that nothing but the list holds; the number depends on the release of Python.
_FREE = _references([np.empty(0)], 0)


def _bytes(numbers: np.ndarray) -> memoryview:
    return memoryview(numbers.view(np.uint8))


def _packs(tensors: Sequence[tf.Tensor], bytes_per_pack: int) -> list[list[int]]:
    """Returns the indices of the tensors of each pack, the last tensors first: their gradients are ready first.

    The first pack has a quarter of the bytes, so that it leaves early, as in PyTorch's DDP.
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
    """Returns the results of a function of the ring.

    For TensorFlow it has no state: in the order of all operations with a state, no pack would start before the last
    gradient is computed.
    """
    stateful = tf.executing_eagerly()
    return tf.nest.flatten(tf.numpy_function(function, inputs, dtypes, stateful=stateful))


def listen() -> tuple[socket.socket, dict[str, Any]]:
    """Opens any free port, at which a worker waits for the one before; also returns what the others must know."""
    listener = listener_lib.listen(0)
    return listener, {"ring_port": listener.getsockname()[1], "ring_nonce": secrets.token_hex(16)}


def connect(
    rank: int, members: Sequence[Mapping[str, Any]], listener: socket.socket, key: Key, seconds: float
) -> TcpRing:
    """Connects to the next worker, and waits for the one before; all workers call it at about the same time.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`, with what `listen` has returned to them.
        key: proves both sides to each other. What is summed is not signed, as it is not with gRPC.
        seconds: for all of it.

    Raises:
        OSError: no connection in time, or the other side has no proof.
    """
    until = time.monotonic() + seconds
    size = len(members)
    after, before, nonce = members[(rank + 1) % size], members[(rank - 1) % size], members[rank]["ring_nonce"]
    address = (hostlist.split_address(after["address"])[0], after["ring_port"])
    to_next = socket.create_connection(address, timeout=seconds)
    to_next.sendall(key.sign(_TO % after["ring_nonce"].encode()))
    from_previous = _accept(listener, key, _TO % nonce.encode(), until)
    from_previous.sendall(key.sign(_FROM % before["ring_nonce"].encode()))
    if not _is_proven(to_next, key, _FROM % nonce.encode(), until):
        raise ConnectionError(f"the port {address[1]} of worker {after['rank']} has no key of this job")
    for one in (to_next, from_previous):
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # During a long evaluation of the chief, firewalls of clouds drop what was silent for 350 s, without a reset.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    return TcpRing(rank, size, to_next, from_previous)


def _accept(listener: socket.socket, key: Key, proof: bytes, until: float) -> socket.socket:
    """Returns the first connection with a proof, for which each has two seconds: a stranger's may send nothing."""
    with listener:
        while True:
            listener.settimeout(max(0.01, until - time.monotonic()))
            found, _ = listener.accept()
            if _is_proven(found, key, proof, min(until, time.monotonic() + _PROOF_SECONDS)):
                return found
            found.close()


def _is_proven(found: socket.socket, key: Key, proof: bytes, until: float) -> bool:
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
