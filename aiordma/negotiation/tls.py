"""How a connection uses TLS: the negotiation runs inside it."""

from __future__ import annotations

from dataclasses import dataclass
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING

from ..pipes.tls import TlsLayer

if TYPE_CHECKING:
    import socket

    from ..config import Config


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS settings of a connection."""

    context: SSLContext
    server_side: bool = False
    server_hostname: str | None = None
    rdma_outside_tls: bool = False
    """The user accepts that the payload goes by RDMA, which TLS does not cover; the negotiation always goes
    through TLS. Otherwise the stream stays on TCP, inside TLS."""
    handshake_seconds: float | None = None
    """Time limit of the TLS handshake; default: that of one message of the negotiation."""
    shutdown_seconds: float | None = None
    """How long a closed stream inside TLS waits without progress; default: 30 s, as asyncio."""

    @classmethod
    def of_client(
        cls, ssl: SSLContext | bool | None, server_hostname: str, rdma_outside_tls: bool
    ) -> TlsOptions | None:
        """The meaning of ``ssl`` for an outgoing connection. True is the default context, which checks the
        server's certificate for ``server_hostname``; None and False mean no TLS.

        :raises TypeError: it is something else.
        """
        if not ssl:
            return None
        if ssl is not True and not isinstance(ssl, SSLContext):
            raise TypeError(f"ssl={ssl!r}: must be an ssl.SSLContext, or True for the default one of clients")
        context = create_default_context() if ssl is True else ssl
        return cls(context, server_hostname=server_hostname, rdma_outside_tls=rdma_outside_tls)

    @classmethod
    def of_server(cls, ssl: SSLContext | None, rdma_outside_tls: bool) -> TlsOptions | None:
        """The meaning of ``ssl`` for incoming connections.

        :raises TypeError: it is no context.
        """
        if ssl is not None and not isinstance(ssl, SSLContext):
            raise TypeError(f"ssl={ssl!r}: a server needs an ssl.SSLContext, with its certificate")
        return None if ssl is None else cls(ssl, server_side=True, rdma_outside_tls=rdma_outside_tls)

    async def begin(self, sock: socket.socket, config: Config) -> TlsLayer:
        """Start TLS on ``sock``, which is closed if that fails.

        :raises OSError: the handshake failed (``ssl.SSLError``) or took too long (``TimeoutError``).
        """
        try:
            layer = TlsLayer(
                sock,
                self.context,
                server_side=self.server_side,
                server_hostname=self.server_hostname,
                shutdown_seconds=self.shutdown_seconds,
            )
            await layer.handshake(self.handshake_seconds or config.negotiate_timeout_ms / 1000)
        except BaseException:
            sock.close()
            raise
        return layer
