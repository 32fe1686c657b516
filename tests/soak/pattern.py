"""Bytes that tell where they belong: all data of the soak is a part of one long pattern."""

from __future__ import annotations

from random import Random

#: A prime number: no ring, slab or fragment has a size that divides it.
PERIOD = 1_048_583
#: The pattern twice, so that a part which runs over its end lies in one piece.
_TWICE = Random(1).randbytes(PERIOD) * 2
_VIEW = memoryview(_TWICE)
#: Enough bytes to find their place.
_CLUE = 12


class WrongByte(Exception):
    """Data is not what was sent: lost, repeated, exchanged or damaged."""


def part(at: int, size: int) -> memoryview:
    """``size`` bytes (up to PERIOD) of the endless pattern, from ``at`` on."""
    if size > PERIOD:
        raise ValueError(f"{size} bytes at once: at most {PERIOD}")
    at %= PERIOD
    return _VIEW[at : at + size]


def check(at: int, data: bytes | bytearray | memoryview) -> int:
    """The position behind ``data``, which should be the pattern from ``at`` on.

    :raises WrongByte: it is not; the message says where it begins to differ and where such bytes belong.
    """
    if not _TWICE.startswith(data, at % PERIOD):
        raise WrongByte(_difference(at, bytes(data)))
    return at + len(data)


def _difference(at: int, data: bytes) -> str:
    expected = bytes(part(at, len(data)))
    wrong = [index for index in range(len(data)) if data[index] != expected[index]]
    first = wrong[0]
    clue = data[first : first + _CLUE]
    found = _TWICE.find(clue) if len(clue) == _CLUE else -1
    where = "nowhere in the pattern"
    if found >= 0:
        ahead = (found - at - first) % PERIOD
        where = f"{ahead} bytes ahead" if ahead < PERIOD // 2 else f"{PERIOD - ahead} bytes back"
    return (
        f"{len(wrong)} of {len(data)} bytes at {at} are wrong, from {at + first} to {at + wrong[-1]}: "
        f"{clue.hex()} instead of {expected[first : first + _CLUE].hex()}; such bytes belong {where}"
    )
