"""What a negotiation (``negotiate.py``) begins with, TLS or none, and how the connection goes on after it."""

from __future__ import annotations

from dataclasses import dataclass
from ssl import create_default_context
from typing import TYPE_CHECKING, Any

from ..pipes.tcp import TcpPipe
from ..pipes.tls import TlsLayer, TlsPipe

if TYPE_CHECKING:
    import socket
    from ssl import SSLContext, SSLObject

    from ..addresses import Address
    from ..config import Config
    from ..errors import FallbackReason

__all__ = ["Outcome", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """How a connection uses TLS."""

    context: SSLContext
    server_side: bool = False
    server_hostname: str | None = None
    rdma_outside_tls: bool = False
    """The user agrees that payload goes by RDMA, which TLS does not cover; the negotiation always goes
    through TLS. Without that the stream stays on TCP, inside TLS."""
    handshake_seconds: float | None = None
    """Time for the TLS handshake; default: that for one message of the negotiation."""

    @classmethod
    def of_client(
        cls, ssl: SSLContext | bool | None, server_hostname: str, rdma_outside_tls: bool
    ) -> Tls | None:
        """What ``ssl`` means where a connection is opened: True stands for the default context, which checks
        the server's certificate for ``server_hostname``; None or False for no TLS.
        """
        if not ssl:
            return None
        context = create_default_context() if ssl is True else ssl
        return cls(context, server_hostname=server_hostname, rdma_outside_tls=rdma_outside_tls)

    @classmethod
    def of_server(cls, ssl: SSLContext | None, rdma_outside_tls: bool) -> Tls | None:
        """What ``ssl`` means where connections are accepted."""
        return None if ssl is None else cls(ssl, server_side=True, rdma_outside_tls=rdma_outside_tls)

    async def begin(self, sock: socket.socket, config: Config) -> TlsLayer:
        """TLS on ``sock``, which is closed if that fails.

        :raises OSError: the handshake failed (``ssl.SSLError``), or took too long (``TimeoutError``).
        """
        try:
            layer = TlsLayer(
                sock, self.context, server_side=self.server_side, server_hostname=self.server_hostname
            )
            await layer.handshake(self.handshake_seconds or config.negotiate_timeout_ms / 1000)
        except BaseException:
            sock.close()
            raise
        return layer


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a connection goes on."""

    pipe: Any
    """The ring pipe, which owns the TCP connection now; None: use ``sock``."""
    sock: socket.socket
    """The TCP connection, non-blocking. Without a pipe the caller owns it."""
    fallback: FallbackReason | None
    """Why there is no pipe."""
    local_address: Address
    remote_address: Address
    tls: TlsLayer | None = None
    """The TLS session on ``sock``; without a pipe, the stream goes through it (``tls.TlsPipe``)."""
    silent: bool = False
    """The client had not said anything when the server gave up waiting for its first bytes. Should they be
    a Proposal after all, they are not the stream's (``tcp.TcpPipe`` sees to that)."""

    @property
    def path(self) -> str:
        """``"RDMA"`` or ``"TCP"``, for people."""
        return "TCP" if self.pipe is None else "RDMA"

    @property
    def session(self) -> SSLObject | None:
        """The TLS session of the connection, if it has one."""
        return None if self.tls is None else self.tls.session

    def tcp_pipe(self) -> TcpPipe | TlsPipe:
        """Where there is no pipe: one on the TCP connection, which it owns from now on."""
        if self.tls is None:
            return TcpPipe(self.sock, late_proposal=self.silent)
        return TlsPipe(self.tls, late_proposal=self.silent)
