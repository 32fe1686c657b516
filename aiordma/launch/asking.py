"""Asking unknown servers before anything of aiordma is loaded for them.

Loading the library and opening a device take longer than a short program does, and most servers of most
programs are plain ones. So a server is asked first, in a thread. Once aiordma is loaded in the process, its
own negotiation finds out as quickly.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..negotiation.question import Answer, ask
from ..wake.beside import start_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .plain_peers import PlainPeers
    from .server import Server

__all__ = ["Asker"]

#: Milliseconds for the answer, if the environment does not set it; round trips are added. It takes a turn of
#: the server's loop, and no work.
_ANSWER_MS = 50
#: Seconds for which a server that said nothing counts as plain, in this process: it may have been busy.
_SILENCE_COUNTS_S = 60


class Asker:
    """Asks each server once, for all tasks that connect to it meanwhile."""

    def __init__(self, peers: PlainPeers) -> None:
        """:param peers: what is found out is remembered there."""
        self._peers = peers
        self._asked: dict[tuple[str, int], Future[Answer]] = {}

    async def judge(
        self, server: Server, loop: Any, wait: Callable[[Future[Answer]], Awaitable[Answer]]
    ) -> Server | str:
        """The server, if it negotiates or need not be asked; or why it counts as a plain one.

        :param loop: looks names up, by a method ``getaddrinfo()`` like asyncio's.
        :param wait: waits in the loop for what a thread finds out.
        """
        if server.known or os.environ.get("AIORDMA_MODE") == "rdma":
            return server
        if server.address is None:
            found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
            addresses = [(each[0], each[4]) for each in found]
        else:
            addresses = [server.address]
        key = server.host, server.port
        asked = self._asked.get(key)
        if asked is None:
            if self._peers.is_plain(*key):  # found out while the name was looked up for this task
                return "it does not negotiate"
            asked = self._asked[key] = Future()
            start_thread(partial(self._find_out, server, addresses, asked))
        answer = await wait(asked)
        if answer is Answer.NEGOTIATES:
            return server
        return "it could not be asked" if answer is Answer.UNREACHABLE else "it does not negotiate"

    def _find_out(self, server: Server, addresses: list[tuple[int, Any]], asked: Future[Answer]) -> None:
        answer = Answer.UNREACHABLE
        try:
            answer = ask(addresses, _milliseconds())
            if answer is Answer.PLAIN and not server.local:
                self._peers.remember(server.host, server.port, True)
            elif answer is not Answer.NEGOTIATES and answer is not Answer.UNREACHABLE:
                self._peers.suspect(server.host, server.port, _SILENCE_COUNTS_S)
        finally:
            self._asked.pop((server.host, server.port), None)  # what was found out is remembered
            asked.set_result(answer)


def _milliseconds() -> int:
    if not os.environ.get("AIORDMA_HEAD_START_MS"):
        return _ANSWER_MS
    from ..config import Config

    return Config.from_env().head_start_ms
