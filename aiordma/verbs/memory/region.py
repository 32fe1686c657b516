"""A region of registered memory, and who makes it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

MIN_BLOCK_BYTES = 4096
"""Smallest block: a page, so that no two owners share one."""
_MIN_BLOCK_BITS = MIN_BLOCK_BYTES.bit_length() - 1


class Region(NamedTuple):
    """One piece of registered memory, as a :class:`Registrar` returns it."""

    address: int
    length: int
    lkey: int
    rkey: int
    #: The registrar's own, handed back to it on release.
    handle: object


class Registrar(Protocol):
    """Makes registered memory. ``register`` raises OSError when the device or the system refuses."""

    #: Whether the memory may be written by a peer.
    remote: bool

    def register(self, length: int) -> Region:
        """``length`` bytes of zeroed, page-aligned, registered memory."""

    def release(self, region: Region) -> None:
        """Deregister and free. The device must be done with the memory."""

    def withdraw(self, region: Region) -> None:
        """Deregister only; ``release`` frees it. The device must be done with the memory."""

    def empty(self, address: int, length: int) -> bool:
        """Give the pages of a part of a region back to the system, so that they read as zeros and cost
        nothing until they are written again. False: not possible, nothing has changed."""


def block_order(length: int) -> int:
    """Size class: the smallest k with ``MIN_BLOCK_BYTES << k >= length``."""
    order = (length - 1).bit_length() - _MIN_BLOCK_BITS
    return order if order > 0 else 0
