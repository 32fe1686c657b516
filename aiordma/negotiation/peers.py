"""Whether servers negotiate, as far as that is found out before anything of aiordma is loaded for them.

Loading the library and opening a device take longer than a short program does, and most servers of most
programs are plain ones. So what is known comes first: of servers on this host whether they announce
themselves, of others what the user's earlier programs have found out. An unknown one is asked, in a thread.
Once aiordma is loaded in the process, its own negotiation finds out as quickly, with
:class:`.peer_cache.Peer`; what it has found out is learned here.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .announcement import is_address_of_this_host, is_announced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..errors import FallbackReason
    from .plain_peers import PlainPeers
    from .question import Answer

_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
#: Names whose kind is remembered at most.
_MAX_NAMES = 1024
#: Milliseconds for the answer, if the environment does not set it; round trips are added. It takes a turn of
#: the server's loop, and no work.
_ANSWER_MS = 50
#: Seconds for which a server that said nothing counts as plain, in this process: it may have been busy.
_SILENCE_COUNTS_S = 60


class KnownServer(NamedTuple):
    """One that a connection may be negotiated with."""

    host: str
    port: int
    #: It is known to negotiate: a rule says so, or a listener of aiordma on this host has announced itself.
    known: bool
    #: Family and address, if the program has connected already.
    address: tuple[int, Any] | None = None
    #: It is on this host, where an announcement says what it is now: nothing is remembered of it.
    local: bool = False


class Peers:
    """What is known of servers; each unknown one is asked once, for all tasks that connect to it meanwhile.

    :param file: the user's memory of plain servers. None: there is none, and so nothing is asked, since the
        answers could not be remembered.
    """

    def __init__(self, file: PlainPeers | None) -> None:
        self._file = file
        self._local: dict[str, bool] = {}
        self._asked: dict[tuple[str, int], Future[Answer]] = {}

    # ---- what is known

    def is_plain(self, host: str, port: int) -> bool:
        """Whether it has said lately that it does not negotiate."""
        return self._file is not None and self._file.is_plain(host, port)

    def is_placed(self, host: str) -> bool:
        """Whether :meth:`is_local` needs no addresses of it."""
        return is_address(host) or host in _LOCAL_NAMES or host in self._local

    def is_local(self, host: str, addresses: list[str] | None = None) -> bool:
        """Whether it is of this host, as far as that is known.

        :param addresses: of the name, if they were looked up.
        """
        if host in _LOCAL_NAMES:
            return True
        if host not in self._local:
            if addresses is None:
                if not is_address(host):
                    return False
                addresses = [host]
            if not addresses:  # the connection fails by that, and the next look-up may find some
                return False
            if len(self._local) >= _MAX_NAMES:
                self._local.clear()
            self._local[host] = all(map(is_address_of_this_host, addresses))
        return self._local[host]

    def judge(self, host: str, port: int, addresses: list[str], *, expected: bool) -> bool | str:
        """Whether it is known to negotiate; or why it counts as a plain one.

        :param expected: a rule says that it does.
        """
        local = self.is_local(host, addresses)
        if expected:
            return True
        return (is_announced(port) or "nothing of aiordma listens there") if local else False

    # ---- what it says

    async def ask(
        self, server: KnownServer, loop: Any, wait: Callable[[Future[Answer]], Awaitable[Answer]]
    ) -> KnownServer | str:
        """The server, if it negotiates or need not be asked; or why it counts as a plain one.

        :param loop: looks names up, by a method ``getaddrinfo()`` like asyncio's.
        :param wait: waits in the loop for what a thread finds out.
        """
        if server.known or self._file is None or os.environ.get("AIORDMA_MODE") == "rdma":
            return server
        if server.address is None:
            found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
            addresses = [(each[0], each[4]) for each in found]
        else:
            addresses = [server.address]
        key = server.host, server.port
        asked = self._asked.get(key)
        if asked is None:
            if self.is_plain(*key):  # found out while the name was looked up for this task
                return "it does not negotiate"
            from ..wake.beside import start_thread

            asked = self._asked[key] = Future()
            start_thread(partial(self._find_out, self._file, server, addresses, asked))
        answer = await wait(asked)
        from .question import Answer  # the thread has imported it

        if answer is Answer.NEGOTIATES:
            return server
        return "it could not be asked" if answer is Answer.UNREACHABLE else "it does not negotiate"

    def _find_out(
        self, file: PlainPeers, server: KnownServer, addresses: list[tuple[int, Any]], asked: Future[Answer]
    ) -> None:
        from .question import Answer, ask

        answer = Answer.UNREACHABLE
        try:
            answer = ask(addresses, _milliseconds())
            if answer is Answer.PLAIN and not server.local:
                file.remember(server.host, server.port, True)
            elif answer is not Answer.NEGOTIATES and answer is not Answer.UNREACHABLE:
                file.suspect(server.host, server.port, _SILENCE_COUNTS_S)
        finally:
            self._asked.pop((server.host, server.port), None)  # what was found out is remembered
            asked.set_result(answer)

    def learn(self, server: KnownServer, reason: FallbackReason | None) -> Callable[[], None] | None:
        """What remembers what a negotiation has shown about the server; it blocks. None: that is no news.

        Only what a server has said counts as plain. One that was silent may have been busy, and one that
        closed the connection may have been about to be started anew.

        :param reason: why the connection is on TCP, if it is.
        """
        from ..errors import Code

        if self._file is None or server.local:
            return None
        plain = silent = False
        if reason is not None and reason.code == Code.PLAIN_TCP_PEER:
            plain, silent = reason.spoke, reason.peer is None and not reason.spoke
        if silent or plain == self.is_plain(server.host, server.port):
            return None
        return partial(self._file.remember, server.host, server.port, plain)


def is_address(host: str) -> bool:
    """Not a name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host.partition("%")[0])
    except OSError:
        return False
    return True


def _milliseconds() -> int:
    if not os.environ.get("AIORDMA_HEAD_START_MS"):
        return _ANSWER_MS
    from ..config import Config

    return Config.from_env().head_start_ms
