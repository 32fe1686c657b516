# cython: annotation_typing=False
"""How many objects a MessagePack payload would become: counted from its bytes, before anything is decoded.

An empty list is one byte on the wire and 64 in memory, so a bound on bytes bounds neither time nor memory of
decoding. Strings, binary data and extensions are passed over by their lengths. There is no recursion: what
lists and maps announce is added to the number of objects that are still to come.

Compiled as well (``objects.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

__all__ = ["LARGEST_LIMIT", "MAX_OBJECTS", "count_objects"]

#: Most objects of one message, unless a setting says otherwise: so many floats (9 bytes each) do not fit into
#: the 4 MiB that are decoded into containers by default, and half a million empty lists take 0.1 s.
MAX_OBJECTS = 1 << 19
#: What a limit may be at most: then no sum of announced lengths exceeds 63 bits.
LARGEST_LIMIT = 1 << 26


def count_objects(data: bytes | bytearray | memoryview, most: int) -> int:
    """Objects in the first value of ``data``, itself included; an entry of a map counts as two.

    Bytes that are no MessagePack, or end too early, are the decoder's to report: it meets no more objects
    before it does than are counted here.

    :param data: as bytes (format ``B``), in one piece.
    :param most: it stops counting when there are more; from 0 to ``LARGEST_LIMIT``.
    """
    size = len(data)
    at = count = 0
    waiting = 1
    while waiting > 0 and at < size and count <= most:
        kind = data[at]
        at += 1
        count += 1
        waiting -= 1
        if kind < 0x80 or kind >= 0xE0:  # a small integer
            continue
        if kind < 0x90:
            waiting += 2 * (kind & 0x0F)
        elif kind < 0xA0:
            waiting += kind & 0x0F
        elif kind < 0xC0:
            at += kind & 0x1F
        elif kind < 0xDC:
            at += _length(data, at, kind, size)
        else:  # a list (0xDC, 0xDD) or a map, its length in 2 or 4 bytes
            width = 2 << (kind & 1)
            announced = _number(data, at, width, size)
            at += width
            waiting += announced if kind < 0xDE else 2 * announced
    return count


def _length(data: bytes | bytearray | memoryview, at: int, kind: int, size: int) -> int:
    """Bytes behind the first one of a value from 0xC0 (nil) to 0xDB (a string)."""
    if kind < 0xC4:  # nil, false, true, and one that does not exist
        return 0
    if kind < 0xC7:  # binary data
        width = 1 << (kind - 0xC4)
        return width + _number(data, at, width, size)
    if kind < 0xCA:  # an extension, whose type is one more byte
        width = 1 << (kind - 0xC7)
        return width + 1 + _number(data, at, width, size)
    if kind < 0xCC:  # a float
        return 4 << (kind - 0xCA)
    if kind < 0xD4:  # an integer of 1, 2, 4 or 8 bytes
        return 1 << (kind & 3)
    if kind < 0xD9:  # an extension of 1, 2, 4, 8 or 16 bytes
        return 1 + (1 << (kind - 0xD4))
    width = 1 << (kind - 0xD9)
    return width + _number(data, at, width, size)


def _number(data: bytes | bytearray | memoryview, at: int, width: int, size: int) -> int:
    """The big-endian number of ``width`` bytes at ``at``; 0 if it is cut off."""
    value = 0
    if width > size - at:
        return value
    for place in range(width):
        value = value << 8 | data[at + place]
    return value
