"""What the caller of asyncio's functions chose, and what becomes of a negotiation's result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..addresses import full_address
from ..errors import Code, FallbackReason, NegotiationError, describe
from ..negotiation.options import PathOptions, settings_of
from .fallback import tcp_info
from .given_socket import has_own_port, why_unfit
from .shown_socket import ShownSocket
from .tls import TLS_OPTIONS, TlsTransport, tls_info
from .transport import RingTransport

if TYPE_CHECKING:
    import socket

    from ..config import Config, Mode
    from ..negotiation.dialogue import NegotiationResult

#: options of asyncio's create_connection() that do not force TCP: they only control which addresses are tried
_ANY_PATH = {"all_errors", "family", "flags", "happy_eyeballs_delay", "interleave", "proto", "sock"}


def _on_any_path(name: str, value: Any) -> bool:
    if name == "local_addr":
        _, port = value
        return not port
    return name in _ANY_PATH or name in TLS_OPTIONS


@dataclass(frozen=True, slots=True)
class Choice(PathOptions):
    """The caller's settings for the path, beside asyncio's own options. TLS is among these until it is known
    that the loop's own TLS is not used.
    """

    rdma_outside_tls: bool = False

    @classmethod
    def of(cls, config: Config | None, mode: Mode | None, rdma_outside_tls: bool) -> Choice:
        """:raises ValueError: there is no such mode, or the environment has a setting that is not allowed."""
        config, mode = settings_of(config, mode)
        # One connection is like the one before: what is checked need not be made and checked again.
        global _last
        last = _last
        if (
            last is None
            or last.config is not config
            or last.mode != mode
            or last.rdma_outside_tls != rdma_outside_tls
            or type(last) is not cls
        ):
            last = _last = cls(config, mode, rdma_outside_tls=rdma_outside_tls)
        return last

    def plain_reason(self, options: dict[str, Any]) -> FallbackReason | None:
        """The reason to use TCP without a negotiation; None: negotiate.

        :raises NegotiationError: the mode is "rdma", which forbids plain TCP
        """
        sock: socket.socket | None = options.get("sock")
        if options.get("ssl") and not self.rdma_outside_tls:
            reason = FallbackReason.of_local(Code.TLS_PAYLOAD_POLICY, "ssl= is TLS over TCP")
        elif self.mode == "tcp":
            reason = FallbackReason.of_local(Code.DISABLED)
        elif given := sorted(
            name for name, value in options.items() if value and not _on_any_path(name, value)
        ):
            reason = FallbackReason.of_local(Code.CONFIGURATION, f"{', '.join(given)} given, for TCP only")
        elif sock is not None and (why := why_unfit(sock)) is not None:
            reason = FallbackReason.of_local(Code.CONFIGURATION, f"the socket given as sock: {why}")
        elif sock is not None and self.mode != "rdma" and has_own_port(sock):
            # A plain peer would see another port, by which it may know the client.
            text = "the socket given as sock: it is bound to a port of the program's choice"
            reason = FallbackReason.of_local(Code.CONFIGURATION, text)
        else:
            return None
        if self.mode == "rdma":
            detail = reason.text.removeprefix(describe(reason.code)).removeprefix(": ")
            raise NegotiationError(reason.code, f"{detail}; mode is 'rdma'")
        return reason


#: The newest choice.
_last: Choice | None = None


def info_of(result: NegotiationResult, sock: socket.socket | None = None) -> dict[str, Any]:
    """Extra info of the connection. `sock`: the caller's own socket, to be shown as the connection's."""
    info: dict[str, Any] = {}
    if result.pipe is None:
        info = tcp_info(result.fallback)
    if result.pipe is not None or result.tls is not None:
        info["peername"] = full_address(result.remote_address)
        info["sockname"] = full_address(result.local_address)
        info["socket"] = ShownSocket(sock or result.sock)
    if result.smc_peer is not None:
        info["aiordma.smc_peer"] = result.smc_peer
    if result.tls is not None:
        info |= tls_info(result.tls)
    return info


def on_own_transport(
    loop: asyncio.AbstractEventLoop,
    result: NegotiationResult,
    protocol: asyncio.BaseProtocol,
    info: dict[str, Any],
    **options: Any,
) -> RingTransport:
    """The transport of a result that has a ring, or TLS that no event loop can take over."""
    if result.pipe is not None:
        return RingTransport(loop, result.pipe, protocol, extra=info, **options)
    return TlsTransport(loop, result, protocol, extra=info, **options)


def abort(result: NegotiationResult) -> None:
    """It will not be used."""
    if result.pipe is not None:
        result.pipe.abort()
    else:
        result.sock.close()
