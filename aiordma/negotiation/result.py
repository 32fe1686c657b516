"""How a negotiation ended: which path the connection takes, and the objects for going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..pipes.tcp import TcpPipe
from ..pipes.tls import TlsPipe

if TYPE_CHECKING:
    import socket
    from ssl import SSLObject

    from ..addresses import Address
    from ..errors import FallbackReason
    from ..pipes.tls import TlsLayer

__all__ = ["NegotiationResult"]


class NegotiationResult(NamedTuple):
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
    """The TLS session on ``sock``; without a pipe, the stream goes through it (:class:`TlsPipe`)."""
    silent: bool = False
    """The client had sent nothing when the server stopped waiting for its first bytes. If they are a Proposal
    after all, they do not belong to the stream: :class:`TcpPipe` removes them."""

    smc_peer: str | None = None
    """With a pipe to another implementation of SMC-R: what that says of itself."""

    @property
    def path(self) -> str:
        """``"RDMA"`` or ``"TCP"``, for people."""
        return "TCP" if self.pipe is None else "RDMA"

    @property
    def session(self) -> SSLObject | None:
        """The TLS session of the connection, if it has one."""
        return None if self.tls is None else self.tls.session

    def tcp_pipe(self) -> TcpPipe | TlsPipe:
        """Make a pipe on the TCP connection, which the pipe owns from now on. Only without a ring pipe."""
        if self.tls is None:
            return TcpPipe(self.sock, late_proposal=self.silent)
        return TlsPipe(self.tls, late_proposal=self.silent)
