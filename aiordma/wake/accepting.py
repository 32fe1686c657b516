"""A listening socket that is watched, except for a while after the process ran out of what connections need.

One that cannot be emptied is readable all the time: a loop that went on watching it would do nothing else.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from .base import Callback, Handle, Waker

__all__ = ["OUT_OF_RESOURCES", "PAUSE_S", "WatchedListener"]

#: Neither descriptors nor memory are left.
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: So long accepting pauses then.
PAUSE_S = 0.5


class WatchedListener:
    """Calls ``readable`` when there is a connection to accept, from now on."""

    def __init__(self, waker: Waker, sock: socket.socket, readable: Callback) -> None:
        self._waker, self._sock, self._readable = waker, sock, readable
        self._pause: Handle | None = None
        self._watch()

    def _watch(self) -> None:
        self._pause = None
        self._waker.watch_fd(self._sock.fileno(), self._readable)

    def failed(self, error: OSError | MemoryError) -> bool:
        """``accept()`` has failed: pause, if that is for want of resources, which the result says."""
        if isinstance(error, OSError) and error.errno not in OUT_OF_RESOURCES:
            return False
        if self._pause is None:
            self._waker.unwatch_fd(self._sock.fileno())
            self._pause = self._waker.call_at(self._waker.now() + PAUSE_S, self._watch)
        return True

    def close(self) -> None:
        """Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self._sock.fileno() >= 0:
            self._waker.unwatch_fd(self._sock.fileno())
        self._sock.close()
