"""Bytes of which each place of a stream has others, and what compares them. It knows nothing of aiordma."""

from __future__ import annotations

import random

#: Its length is a prime, so that no ring and no buffer begins at the same byte twice.
BLOCK = random.Random(42).randbytes(1_000_003)


def part(at: int, size: int) -> bytes:
    """So many bytes from this place of the stream on, or fewer: at least one."""
    begin = at % len(BLOCK)
    return BLOCK[begin : begin + size]


class Checked:
    """The receiving end of such a stream."""

    def __init__(self) -> None:
        #: Bytes that came.
        self.count = 0

    def take(self, data: bytes) -> None:
        """The next bytes. :raises AssertionError: another one was sent in the place of one of them."""
        at = 0
        while at < len(data):
            expected = part(self.count, len(data) - at)
            assert data[at : at + len(expected)] == expected, f"a wrong byte behind the first {self.count}"
            at += len(expected)
            self.count += len(expected)
