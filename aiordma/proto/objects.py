# cython: annotation_typing=False
"""How many objects a MessagePack payload would become: counted from its bytes, before anything is decoded.

An empty list is one byte on the wire and 64 in memory, so a bound on bytes bounds neither time nor memory of
decoding. Strings, binary data and extensions are passed over by their lengths. There is no recursion: what
lists and maps announce is added to the number of objects that are still to come.

Compiled as well (``objects.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

#: Most objects of one message, unless a setting says otherwise: so many floats (9 bytes each) do not fit into
#: the 4 MiB that are decoded into containers by default, and half a million empty lists take 0.1 s.
MAX_OBJECTS = 1 << 19
#: Most keys of one message whose hashes a peer can choose, unless a setting says otherwise: if all of them
#: collide, one map of so many takes 0.1 s.
MAX_KEYS = 1 << 14
#: Most objects of all calls of one client that are in flight, unless a setting says otherwise: four times as
#: many as one may have, which is 128 MiB of empty lists.
MAX_HELD_OBJECTS = 1 << 21
#: What a limit may be at most: then no sum of announced lengths exceeds 63 bits.
LARGEST_LIMIT = 1 << 26
#: Maps and sets of at most so many entries are not looked at: collisions in them cost little.
SMALL_MAP = 256
#: What else are keys, by the type of the value: items of lists, since they become sets; strings, since they
#: become numbers.
SETS, STRINGS = 1, 2


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


def count_keys(data: bytes | bytearray | memoryview, most: int, also: int) -> int:
    """Keys in the first value of ``data`` whose hashes its sender can choose, so that they collide: those of
    maps with more than ``SMALL_MAP`` entries that are neither strings nor bytes (whose hashes are keyed).

    A peer that knows how a ``dict`` looks for a place has n numbers take n * n / 4 steps. As for the count of
    objects, a decoder meets no more keys before it finds an error.

    :param most: it stops counting when there are more.
    :param also: ``SETS``, ``STRINGS``, both or 0: what else is one.
    """
    size = len(data)
    at = count = role = 0  # role 1: a large map, 2: a list that may become a large set
    left = 1
    above: list[int] = []
    while at < size and count <= most:
        while left == 0:
            if not above:
                return count
            level = above.pop()
            left = level >> 2
            role = level & 3
        kind = data[at]
        at += 1
        left -= 1
        if role == 2 or (role == 1 and left & 1):
            text = 0xA0 <= kind < 0xC0 or 0xC4 <= kind <= 0xC6 or 0xD9 <= kind <= 0xDB
            if also & 2 or not text:
                count += 1
        if kind < 0x80 or kind >= 0xE0:
            continue
        if kind < 0xA0:
            announced = kind & 0x0F
            is_map = kind < 0x90
        elif kind < 0xC0:
            at += kind & 0x1F
            continue
        elif kind < 0xDC:
            at += _length(data, at, kind, size)
            continue
        else:
            announced = _number(data, at, 2 << (kind & 1), size)
            at += 2 << (kind & 1)
            is_map = kind >= 0xDE
        if left:
            above.append(left << 2 | role)
        left = 2 * announced if is_map else announced
        role = 0
        if announced > SMALL_MAP and (is_map or also & 1):
            role = 1 if is_map else 2
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
