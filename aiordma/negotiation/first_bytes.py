"""Telling an aiordma client from a plain one by its first bytes, which stay in the socket.

They may be the beginning of the stream of a plain client. So the server only peeks until the eye catcher of
CLC is certain. A client may also send nothing, because it waits for the server to speak first; or what a
Proposal begins with and no more, which is no Proposal either, since those come in one piece. One of another
host has the time that is set for that. One of this host has 50 ms, unless some client says that it is about
to negotiate (:mod:`.announcement`).
"""

from __future__ import annotations

import math
import select
import socket
from typing import TYPE_CHECKING

from ..proto import clc
from .announcement import is_expected
from .clc_io import HEADER_BYTES

if TYPE_CHECKING:
    from .clc_io import ClcIO
    from .options import PathOptions

#: Seconds for a silent client of this host, and then for each further look whether one is about to speak.
_NEAR_S = 0.035
_LOOK_AGAIN_S = 0.02
#: Such looks in a second, of all the clients of an event loop.
_LOOKS = 2000
#: How many clients a loop looks out for, in its waker's locals.
_KEY = "aiordma.negotiation.silent"
#: Seconds in which what such a client had sent, when it took its name back, has arrived.
_ARRIVES_S = 0.01
#: IPv4 addresses of sockets of both families.
_MAPPED = "::ffff:"


class FirstBytes:
    """The first bytes of one client."""

    def __init__(
        self, io: ClcIO, options: PathOptions, *, announced: bool = False, is_plain: bool = False
    ) -> None:
        """:param announced: the client has said that CLC will come.
        :param is_plain: it has not, and would have. It is waited for only if it is of this host, and says so
            there.
        """
        self._io = io
        patient = announced or options.mode == "rdma"
        silent_s = options.config.server_first_wait_ms / 1000
        if patient:
            # No plain client is served, so none waits for the server to speak first.
            silent_s = max(silent_s, options.config.negotiate_timeout_ms / 1000)
        began = io.now()
        self._deadline = began + silent_s
        #: When to look whether anything of a client of this host is to be expected.
        self._look_at = began + _NEAR_S if not patient and _is_near(io) else math.inf
        self._late = is_plain and not patient and not (_is_near(io) and self._is_expected())
        self._seen = 0
        self._silent: list[int] = io.waker.locals.setdefault(_KEY, [0])

    async def are_clc(self) -> bool | None:
        """Whether the client begins with CLC; None when it sends nothing in time. Consumes nothing.

        :raises OSError: the connection is lost.
        """
        self._silent[0] += 1
        try:
            while True:
                verdict = self._look()
                if verdict is not None:
                    return verdict
                if self._late:
                    return False if self._seen else None
                until = min(self._deadline, self._look_at)
                if await self._io.wait_readable(until):
                    continue
                # After the last wait comes a last look: what arrived while this process did not run counts.
                self._late = until == self._deadline
                if not self._late:
                    self._expect()
        finally:
            self._silent[0] -= 1
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

    def _expect(self) -> None:
        """The client is of this host, and silent: it is a plain one if none has said that it will speak."""
        now = self._io.now()
        if self._is_expected():
            self._look_at = now + max(_LOOK_AGAIN_S, self._silent[0] / _LOOKS)
        else:
            self._look_at, self._deadline = math.inf, min(self._deadline, now + _ARRIVES_S)

    def _is_expected(self) -> bool:
        try:
            return is_expected(self._io.local[1])
        except OSError:
            return True

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


def _is_near(io: ClcIO) -> bool:
    """Whether the client shares this network namespace. An address that both ends have is no other host's."""
    client, server = io.remote[0].removeprefix(_MAPPED), io.local[0].removeprefix(_MAPPED)
    return client == server or client.startswith("127.") or client == "::1"
