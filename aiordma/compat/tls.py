"""TLS on connections of the asyncio functions that were negotiated inside it (`rdma_outside_tls=True`).

What is not negotiated uses the event loop's own TLS. Here the session exists when the path is agreed on, and
no event loop takes over a session that others have begun; so a stream that stays inside it runs on a
transport of ours.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio

from ..negotiation.tls import TlsOptions
from ..pipes.tls import TlsPipe
from .transport import RingTransport

if TYPE_CHECKING:
    import ssl as ssl_module

    from ..negotiation.dialogue import NegotiationResult
    from ..pipes.tls import TlsLayer

#: options of asyncio's functions that are about TLS
TLS_OPTIONS = {"ssl", "server_hostname", "ssl_handshake_timeout", "ssl_shutdown_timeout"}


def take_tls(options: dict[str, Any], host: str | None, *, server_side: bool) -> TlsOptions | None:
    """The options about TLS, taken out of `options`; None: no TLS."""
    taken = {name: options.pop(name, None) for name in TLS_OPTIONS}
    context: ssl_module.SSLContext | bool | None = taken["ssl"]
    if not context:
        return None
    if context is True:
        import ssl as ssl_module

        context = ssl_module.create_default_context()
    hostname = taken["server_hostname"]
    return TlsOptions(
        context,
        server_side=server_side,
        server_hostname=None if server_side else host if hostname is None else hostname or None,
        rdma_outside_tls=True,
        handshake_seconds=taken["ssl_handshake_timeout"],
        shutdown_seconds=taken["ssl_shutdown_timeout"],
    )


def tls_info(layer: TlsLayer) -> dict[str, Any]:
    """Extra info of a transport, with asyncio's names."""
    session = layer.session
    return {
        "sslcontext": session.context,
        "ssl_object": session,
        "peercert": session.getpeercert(),
        "cipher": session.cipher(),
        "compression": session.compression(),
    }


class TlsTransport(RingTransport):
    """A transport whose payload stays in TLS over TCP. As asyncio's own, it has no half-close."""

    _pipe: TlsPipe
    _ends_beside_tcp = False

    def __init__(self, loop: Any, result: NegotiationResult, protocol: Any, **options: Any) -> None:
        assert result.tls is not None
        super().__init__(loop, TlsPipe(result.tls, late_proposal=result.silent), protocol, **options)

    def can_write_eof(self) -> bool:
        """False: see asyncio."""
        return False

    def write_eof(self) -> None:
        """:raises NotImplementedError: see asyncio"""
        raise NotImplementedError

    def _finish(self) -> None:
        # As asyncio's: connection_lost() when the peer has the end as well, or does not answer in time.
        self._pipe.on_ended = self._ended
        self._pipe.close()

    def _close_pipe(self) -> None:
        # After abort() there is no reader for what the peer sends.
        self._pipe.close_tcp()

    def _drop_pipe(self) -> None:
        # As asyncio's: the kernel delivers what it has taken, where a reset could destroy it.
        self._pipe.close_tcp()

    def _ended(self, exc: Exception | None) -> None:
        if not self._conn_lost:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._lose(exc)

    def _receive_into_protocol(self) -> bool:
        # A ring shows what is in it; a socket must be read first, and only then signals when there is more.
        try:
            self._pipe.view()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self.ring_failed(exc)
            return False
        return super()._receive_into_protocol()
