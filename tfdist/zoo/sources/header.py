"""The size of an image, from the first bytes of its file. No TensorFlow."""

import struct
from typing import BinaryIO

# JPEG's start-of-frame markers: C0 to CF without C4 (Huffman tables), C8 (reserved) and CC (arithmetic coding).
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_size(path: str) -> tuple[int, int]:
    """Returns (height, width) of a JPEG, PNG, GIF or BMP file.

    Raises:
        ValueError: it is none of these, or ends too early; names it.
    """
    with open(path, "rb") as file:
        try:
            size = _size(file)
        except struct.error:
            size = None
    if size is None or min(size) < 1:
        raise ValueError(f"The image {path!r} cannot be read: it is no JPEG, PNG, GIF or BMP, or is cut off.")
    return size


def _size(file: BinaryIO) -> tuple[int, int] | None:
    start = file.read(10)
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        file.seek(16)
        width, height = struct.unpack(">II", file.read(8))
    elif start.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack("<HH", start[6:] if len(start) == 10 else b"")
    elif start.startswith(b"BM"):
        file.seek(18)
        width, height = struct.unpack("<ii", file.read(8))
    elif start.startswith(b"\xff\xd8"):
        file.seek(2)
        return _jpeg_size(file)
    else:
        return None
    return abs(height), width  # BMP: a negative height means that rows run from the top.


def _jpeg_size(file: BinaryIO) -> tuple[int, int] | None:
    """Walks the segments of a JPEG up to the one that starts the frame (ITU-T T.81, annex B)."""
    while True:
        prefix, marker = struct.unpack("BB", file.read(2))
        if prefix != 0xFF:
            return None
        if marker == 0xFF:  # A fill byte: the marker is still to come.
            file.seek(-1, 1)
            continue
        (length,) = struct.unpack(">H", file.read(2))
        if marker in _START_OF_FRAME:
            _, height, width = struct.unpack(">BHH", file.read(5))
            return height, width
        file.seek(length - 2, 1)
