"""A device that refuses requests, as one without memory does."""

from __future__ import annotations

import ctypes
import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aiordma.datapath import _late

if TYPE_CHECKING:
    from collections.abc import Iterator

_POINTER = ctypes.sizeof(ctypes.c_void_p)
#: Where ``struct ibv_context`` has ``post_send``: behind the device, the 26th of its operations.
_POST_SEND = (1 + 25) * _POINTER
# Python's lock stays held: the thread that posts for a blocked loop relies on that.
_POST = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


class Refusing:
    """How many posts are still to be refused, how many were, and how many were taken behind those."""

    def __init__(self, times: int) -> None:
        self.left, self.refused, self.taken_behind = times, 0, 0


@contextmanager
def refusing(queue_pair: int, times: int = 1, *, late: bool = False) -> Iterator[Refusing]:
    """The device has no memory for the next requests on a queue pair (its address). It takes those behind.

    :param late: only for requests that another thread posts than this one.
    """
    counts, here = Refusing(times), threading.get_ident()
    context = ctypes.c_uint64.from_address(queue_pair).value
    slot = ctypes.c_uint64.from_address(context + _POST_SEND)
    before = slot.value
    post = _POST(before)

    def post_or_refuse(qp: int, wr: int, bad: Any) -> int:
        if qp != queue_pair or not counts.left or (late and threading.get_ident() == here):
            counts.taken_behind += qp == queue_pair and counts.refused > 0
            return int(post(qp, wr, bad))
        counts.left -= 1
        counts.refused += 1
        bad[0] = wr
        return errno.ENOMEM

    replaced = _POST(post_or_refuse)
    slot.value = ctypes.cast(replaced, ctypes.c_void_p).value or 0
    try:
        yield counts
    finally:
        slot.value = before


@contextmanager
def hurried() -> Iterator[None]:
    """The thread that posts for a blocked loop looks all the time."""
    _late.set_period_ns(1)
    try:
        yield
    finally:
        _late.set_period_ns(0)


def block(counts: Refusing) -> None:
    """Compute until that thread was refused, or for as long as it may take where something was put off.

    This thread may have come late to that, and posted by itself: then the caller has to try again.
    """
    for _ in range(2_000_000):  # a tenth of a second
        if counts.refused:
            break
