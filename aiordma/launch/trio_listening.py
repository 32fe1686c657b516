"""Listeners of trio and anyio whose connections are negotiated before programs see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ..errors import Code, NegotiationError
from ..negotiation.accept import ConnectionListener
from ..negotiation.options import ListenOptions
from ..negotiation.server import keep_plain, negotiate_accepted
from .trio_socket import socket_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    import trio

    from ..config import Config
    from ..negotiation.dialogue import NegotiationResult


class Negotiated:
    """An accepted connection, as a listener hands it out."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = sock

    def abort(self) -> None:
        """The program did not want it."""
        self.socket.close()

    async def aclose(self) -> None:
        """End it."""
        self.socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()


class NegotiatingListener(ConnectionListener[Negotiated]):
    """What accepts in the place of a listener of the program's."""

    def __init__(self, sock: socket.socket, config: Config, permits: Callable[[socket.socket], bool]) -> None:
        """:param permits: whether an accepted connection may be negotiated."""
        self._permits = permits
        super().__init__([sock], ListenOptions.of(config=config))

    async def _negotiate(self, sock: socket.socket, may_use_rdma: Callable[[], bool]) -> NegotiationResult:
        if self._permits(sock):
            return await super()._negotiate(sock, may_use_rdma)
        forbidden = NegotiationError(Code.CONFIGURATION, "the rules keep it plain")
        declined = await keep_plain(sock, self._options, forbidden)
        return declined or await negotiate_accepted(sock, ListenOptions.of(mode="tcp"))

    async def _make(self, result: NegotiationResult) -> Negotiated:
        return Negotiated(socket_of(result))
