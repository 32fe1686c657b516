"""Which of a server's accepted connections are negotiated now: those of one host hold up no other host's.

A client that begins a negotiation and does not go on keeps its place for seconds. So a host has a part of the
places only, and what it has beyond that waits for its own others, not in the way of what the kernel has for
everybody.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING

from ..addresses import plain_address

if TYPE_CHECKING:
    import socket

_log = logging.getLogger("aiordma.compat")

#: So many connections may wait for each place.
_WAITING_FACTOR = 8
#: Hosts that are looked at when a place becomes free.
_LOOKS = 8


class _Places:
    """A number of places. A host gets one while more is left to others than it has: half, if it is alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0
        self._of: Counter[str] = Counter()

    def left(self) -> int:
        """How many are free."""
        return self._most - self.taken

    def has_for(self, host: str) -> bool:
        """Whether this host may have one more."""
        return self._of[host] < self.left()

    def enter(self, host: str) -> None:
        """It has one more."""
        self.taken += 1
        self._of[host] += 1

    def leave(self, host: str) -> None:
        """It has one less."""
        self.taken -= 1
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]


class Shares:
    """The places of one server, and the connections that wait for one."""

    def __init__(self, most: int) -> None:
        """:param most: connections that are negotiated at a time."""
        self._begun = _Places(most)
        self._kept = _Places(most * _WAITING_FACTOR)
        self._waiting: dict[str, deque[socket.socket]] = {}

    @property
    def waiting(self) -> int:
        """Connections that wait."""
        return self._kept.taken

    def has_room(self) -> bool:
        """Whether there is a place for a host that has none, and one to wait at."""
        return self._begun.left() > 0 and self._kept.left() > 0

    def take(self, sock: socket.socket) -> str | None:
        """A connection was accepted. Returns its host if it begins now, or keeps it; or closes it, of a host
        for which too many wait already.
        """
        try:
            host = plain_address(sock.getpeername())[0]
        except OSError:  # it has gone
            host = ""
        if host not in self._waiting and self._begun.has_for(host):
            self._begun.enter(host)
            return host
        if self._kept.has_for(host):
            self._kept.enter(host)
            self._waiting.setdefault(host, deque()).append(sock)
        else:
            _log.debug("too many connections of %s wait: one is closed", host)
            sock.close()
        return None

    def ended(self, host: str) -> list[tuple[str, socket.socket]]:
        """One that had begun has its path, or has failed. Returns those that begin now, with their hosts."""
        self._begun.leave(host)
        begin = []
        for _ in range(min(len(self._waiting), _LOOKS)):
            turn = next(iter(self._waiting))
            queue = self._waiting.pop(turn)
            if self._begun.has_for(turn):
                self._kept.leave(turn)
                self._begun.enter(turn)
                begin.append((turn, queue.popleft()))
            if queue:
                self._waiting[turn] = queue  # behind the other hosts
        return begin

    def drop(self) -> None:
        """Close what waits."""
        for host, queue in self._waiting.items():
            for sock in queue:
                self._kept.leave(host)
                sock.close()
        self._waiting.clear()
