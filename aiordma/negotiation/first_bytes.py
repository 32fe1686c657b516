"""Telling an aiordma client from a plain one by its first bytes, which stay in the socket.

They may be the beginning of the stream of a plain client. So the server only peeks until the eye catcher of
CLC is certain. A client may also send nothing, because it waits for the server to speak first; or what a
Proposal begins with and no more, which is no Proposal either, since those come in one piece.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

from ..proto import clc
from .clc_io import HEADER_BYTES

if TYPE_CHECKING:
    from .clc_io import ClcIO
    from .options import PathOptions

__all__ = ["FirstBytes"]


class FirstBytes:
    """The first bytes of one client."""

    def __init__(self, io: ClcIO, options: PathOptions) -> None:
        self._io = io
        silent_s = options.config.server_first_wait_ms / 1000
        if options.mode == "rdma":
            # No plain client is served, so none waits for the server to speak first.
            silent_s = max(silent_s, options.config.negotiate_timeout_ms / 1000)
        self._deadline = io.now() + silent_s
        self._late = False
        self._seen = 0

    async def are_clc(self) -> bool | None:
        """Whether the client begins with CLC; None when it sends nothing in time. Consumes nothing.

        :raises OSError: the connection is lost.
        """
        try:
            while True:
                verdict = self._look()
                if verdict is not None:
                    return verdict
                if self._late:
                    return False if self._seen else None
                # After the last wait comes a last look: what arrived while this process did not run counts.
                self._late = not await self._io.wait_readable(self._deadline)
        finally:
            if self._seen:
                self._wake_at(1)

    def _look(self) -> bool | None:
        """Judge what is there; None: not enough to decide."""
        try:
            head = self._io.carrier.recv(HEADER_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return None
        verdict = clc.looks_like_clc(head) if head else False
        if verdict is not None or (len(head) == self._seen and self._is_all()):
            return bool(verdict)
        if len(head) > self._seen:
            self._wake_at(len(head) + 1)  # the next byte may disprove it
        self._seen = len(head)
        return None

    def _is_all(self) -> bool:
        """Whether the peer has finished, so that nothing will follow what is there."""
        if self._io.tls is not None:
            return self._io.tls.at_end
        poll = select.poll()
        poll.register(self._io.sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _wake_at(self, count: int) -> None:
        """Have the kernel report the socket as readable from ``count`` bytes on, or at its end: with one byte
        in it, it would be readable all the time."""
        if self._io.tls is None:
            self._io.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
