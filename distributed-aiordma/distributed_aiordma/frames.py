"""Messages on the wire: what precedes a message's frames. No I/O.

A message begins with a head of 8 bytes: a magic number with the version, and the number of frames, with a bit
that says whether the message is *quick*: deserialising it takes no time, however long it is. For each frame a
word follows, with its length and whether it begins a *buffer*: memory of its own at the receiver. Then come
the bytes of all frames. Numbers are little-endian.

The sender decides where buffers begin, since it knows which frames belong together. A worker keeps received
data by whole buffers. So two arrays never share one; the shards of one array do, and need not be joined; and
what comes before the first array shares its buffer only if it is small beside it.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HEAD_BYTES", "BadMessageError", "Frame", "Layout", "begin", "count_of", "layout_of"]

Frame = bytes | bytearray | memoryview

#: "rdC", and the version of this format.
_MAGIC = int.from_bytes(b"rdC\x01", "little")
_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
_BEGINS = 1 << 63
_QUICK = 1 << 31
#: Most frames of a message, and most bytes of all of them: beyond any real message, but not beyond reason.
_MAX_FRAMES = 1 << 22
_MAX_BYTES = 1 << 46
#: What comes before the first array may share its buffer up to this size, or this part of the array's.
_SMALL_BYTES, _SMALL_PART = 2048, 0.05
#: Beside others, ``bytes`` up to this size share a buffer.
_SHARED_BYTES = 65536
#: Arrays begin at multiples of this.
_ALIGNMENT = 64

#: For each buffer, the lengths of its frames.
Layout = list[list[int]]


class BadMessageError(Exception):
    """The peer has sent what is no message."""


def begin(frames: Sequence[Frame], lengths: Sequence[int], *, quick: bool = False) -> bytes:
    """What is sent before ``frames``, which have ``lengths`` bytes."""
    count = len(frames)
    words = lengths if all(type(frame) is bytes for frame in frames) else _marked(frames, lengths)
    return struct.pack(f"<II{count}Q", _MAGIC, count | _QUICK if quick else count, *words)


def _marked(frames: Sequence[Frame], lengths: Sequence[int]) -> list[int]:
    """The lengths, marked where a buffer begins."""
    words: list[int] = []
    held: object = None  # whose bytes the current buffer has; None: bytes, which nothing keeps
    size = 0
    for frame, length in zip(frames, lengths, strict=True):
        source: object = frame.obj if isinstance(frame, memoryview) else frame
        if type(source) is bytes and length <= _SHARED_BYTES:
            begins = held is not None
            source = None
        elif held is None and words:
            begins = size > max(_SMALL_BYTES, length * _SMALL_PART)
        else:
            begins = source is not held
        begins = begins and bool(words)  # the first frame begins a buffer anyway
        if begins:
            size = 0
        held = source
        size += length
        words.append(length | _BEGINS if begins else length)
    return words


def count_of(head: Frame) -> tuple[int, bool]:
    """The number of frames, and whether the message is quick, by the first ``HEAD_BYTES`` bytes.

    :raises BadMessageError: it is no head, or that of another version.
    """
    magic, word = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        raise BadMessageError(
            f"the peer does not speak this version of distributed-aiordma (0x{magic:08x}, not 0x{_MAGIC:08x})"
        )
    count = int(word & ~_QUICK)
    if not 0 < count <= _MAX_FRAMES:
        raise BadMessageError(f"a message of {count} frames")
    return count, bool(word & _QUICK)


def layout_of(words: Sequence[int]) -> Layout:
    """The buffers of a message, by the words of its frames (at least one).

    :raises BadMessageError: together they are longer than any message.
    """
    starts: list[int] = []
    lengths = list(words)
    if max(words) >= _BEGINS:
        starts = [number for number, word in enumerate(words) if word & _BEGINS and number]
        lengths = [word & ~_BEGINS for word in words]
    if sum(lengths) > _MAX_BYTES:
        raise BadMessageError(f"a message of {sum(lengths)} bytes")
    return [lengths[start:stop] for start, stop in pairwise([0, *starts, len(lengths)])]


def padding(lengths: Sequence[int]) -> int:
    """Bytes to leave free at the start of a buffer, so that its longest frame is aligned."""
    if len(lengths) == 1:
        return 0
    where = lengths.index(max(lengths))
    return -sum(lengths[:where]) % _ALIGNMENT


def cut(buffer: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """The frames of a buffer, without what was left free."""
    return [buffer[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]
