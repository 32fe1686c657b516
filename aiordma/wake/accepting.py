"""Accepting connections: one loop for everything that listens.

It stops while its owner has no room, and for a while after the process ran out of what connections need. A
listening socket that cannot be emptied is readable all the time: a loop that went on watching it would do
nothing else.
"""

from __future__ import annotations

import errno
import weakref
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from .base import Handle, Waker

#: Neither descriptors nor memory are left.
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: So long accepting pauses then.
PAUSE_S = 0.5


class Accepting(Protocol):
    """The owner of listening sockets."""

    def has_room(self) -> bool:
        """Whether it would take one more connection now. If not, it calls ``resume()`` when it has."""

    def take(self, sock: socket.socket) -> None:
        """A connection, non-blocking, which is its own from here on."""

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        """``accept()`` has failed: for want of resources, and it pauses; or one client has gone already."""


class Acceptor:
    """Accepts from ``sockets``, once :meth:`resume` was called, and closes them.

    :param owner: not kept alive by this object.
    :param most: connections to accept from one socket in one turn of the loop.
    :param holds: while sockets are watched, the loop keeps the owner. Otherwise one that its program has
        dropped ends.
    """

    def __init__(
        self, waker: Waker, sockets: Iterable[socket.socket], owner: Accepting, most: int, *, holds: bool
    ) -> None:
        self._waker, self._sockets, self._most, self._holds = waker, list(sockets), most, holds
        self._owner = weakref.ref(owner)
        self._pause: Handle | None = None
        self._closed = False
        #: Connections are accepted as they come.
        self.watching = False
        #: Their descriptors: a program may close a socket that it gave, which has none then.
        self._watched: set[int] = set()

    def resume(self) -> None:
        """Accept, if the owner has room. Idempotent."""
        owner = self._owner()
        if self.watching or self._pause is not None or self._closed or owner is None or not owner.has_room():
            return
        self.watching = True
        held = owner if self._holds else None
        for sock in self._sockets:
            if (number := sock.fileno()) >= 0:
                self._waker.watch_fd(number, partial(self.accept_from, sock, held))
                self._watched.add(number)

    def accept_from(self, listening: socket.socket, _held: object = None) -> None:
        """A listening socket is readable."""
        owner = self._owner()
        if owner is None:
            return
        for _ in range(self._most):
            if not owner.has_room():
                self._stop()
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, MemoryError) as error:
                pauses = isinstance(error, MemoryError) or error.errno in OUT_OF_RESOURCES
                if pauses:
                    self._stop()
                    held = owner if self._holds else None
                    self._pause = self._waker.call_at(self._waker.now() + PAUSE_S, partial(self._again, held))
                owner.accept_failed(error, pauses=pauses)
                if pauses:
                    return
            else:
                sock.setblocking(False)
                owner.take(sock)

    def _again(self, _held: object) -> None:
        self._pause = None
        self.resume()

    def _stop(self) -> None:
        self.watching = False
        while self._watched:
            self._waker.unwatch_fd(self._watched.pop())

    def release(self, sock: socket.socket) -> None:
        """Give up one of the sockets: it is neither watched nor closed any more."""
        self._sockets.remove(sock)
        if (number := sock.fileno()) in self._watched:
            self._watched.remove(number)
            self._waker.unwatch_fd(number)

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._stop()
        for sock in self._sockets:
            sock.close()
