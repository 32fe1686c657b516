"""A device that takes no receives."""

from __future__ import annotations

import contextlib
import ctypes
import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_POINTER = ctypes.sizeof(ctypes.c_void_p)
#: struct ibv_qp begins with its context, and struct ibv_context with the device and 26 other functions.
_POST_RECV = (1 + 26) * _POINTER
_Post = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), use_errno=False
)


class Refusals:
    """What became of the receives: how many were refused, and of how many requests."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self.asked = self.refused = 0

    def next(self) -> bool:
        """Whether to refuse this one."""
        self.asked += 1
        refuse = self._first <= self.asked <= self._last
        self.refused += refuse
        return refuse


@contextlib.contextmanager
def no_receives(qp: int, *, only: bool = True, first: int = 1, last: int = 1 << 32) -> Iterator[Refusals]:
    """Let the device refuse receives (EIO), from the ``first`` request on up to the ``last`` one.

    :param qp: address of a queue pair of that device.
    :param only: those of this queue pair; else those of all.
    """
    context = ctypes.c_uint64.from_address(qp).value
    function = ctypes.c_uint64.from_address(context + _POST_RECV)
    before = function.value
    post = _Post(before)
    found = Refusals(first, last)

    def post_or_refuse(asked: int, request: int, bad: ctypes._Pointer[ctypes.c_void_p]) -> int:
        if (asked == qp or not only) and found.next():
            bad[0] = ctypes.c_void_p(request)
            return errno.EIO
        return int(post(asked, request, bad))

    refusing = _Post(post_or_refuse)
    function.value = ctypes.cast(refusing, ctypes.c_void_p).value or 0
    try:
        yield found
    finally:
        function.value = before
