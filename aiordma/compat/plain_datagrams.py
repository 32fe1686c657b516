"""Endpoints of datagrams that stay on UDP: the event loop's own transports, with extra info about the path.

A socket of the program's, a port that several endpoints share, and broadcasts are the kernel's alone: a queue
pair has one owner and one peer for each datagram.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED
from ..errors import Code, FallbackReason, NegotiationError, describe
from ..negotiation import peer_cache
from .fallback import View
from .own_methods import unpatched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..config import Mode

#: Arguments of `create_datagram_endpoint()` that only the kernel's UDP has.
_ONLY_UDP = ("allow_broadcast", "reuse_port", "sock")
_FAMILIES = (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6)


def why_plain(mode: Mode, options: Mapping[str, Any]) -> FallbackReason | None:
    """Why an endpoint with these arguments of asyncio's is one of UDP; None: they do not decide it.

    :raises NegotiationError: the mode is "rdma", which forbids it.
    """
    given = [name for name in _ONLY_UDP if options.get(name)]
    if options["family"] not in _FAMILIES:
        given.append("family")
    if not given:
        return None
    reason = FallbackReason.of_local(Code.CONFIGURATION, f"{', '.join(given)} given, for UDP only")
    if mode == "rdma":
        detail = reason.text.removeprefix(describe(reason.code)).removeprefix(": ")
        raise NegotiationError(reason.code, f"{detail}; mode is 'rdma'")
    return FallbackReason.of_local(Code.DISABLED) if mode == "tcp" else reason


class DatagramView(View, asyncio.DatagramTransport):
    """A transport of uvloop with extra info beside its own."""

    own_methods = (
        "abort", "close", "get_protocol", "get_write_buffer_limits", "get_write_buffer_size", "is_closing",
        "sendto", "set_protocol", "set_write_buffer_limits",
    )  # fmt: skip


class _Introduction(asyncio.DatagramProtocol):
    """Stands in for a protocol until connection_made(), to hand it the transport with its extra info."""

    transport: asyncio.DatagramTransport

    def __init__(self, protocol: asyncio.DatagramProtocol, info: Mapping[str, Any]) -> None:
        self.protocol, self._info = protocol, info

    def connection_made(self, transport: Any) -> None:
        """Step aside."""
        transport.set_protocol(self.protocol)
        extra = getattr(transport, "_extra", None) if ENABLED else None
        if isinstance(extra, dict):
            extra.update(self._info)
            self.transport = transport
        else:
            self.transport = DatagramView(transport, self._info)
        self.protocol.connection_made(self.transport)


async def create_plain_endpoint(
    factory: Callable[[], Any], reason: FallbackReason, options: dict[str, Any]
) -> tuple[Any, Any]:
    """The loop's own `create_datagram_endpoint()`, for this reason.

    :param options: the arguments of asyncio's.
    """
    made: list[_Introduction] = []
    info = {"aiordma.path": "udp", "aiordma.fallback_reason": reason}

    def introduce() -> _Introduction:
        made.append(_Introduction(factory(), info))
        return made[-1]

    own = unpatched(asyncio.get_running_loop())
    given = {name: value for name, value in options.items() if value is not None}
    await own.create_datagram_endpoint(introduce, **given)
    (introduction,) = made
    transport = introduction.transport
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        peer_cache.announce("server", f"{peer[0]}:{peer[1]}", "udp", reason)
    elif isinstance(name := transport.get_extra_info("sockname"), tuple):
        peer_cache.announce("client", f"of {name[0]}:{name[1]}", "udp", reason)
    return transport, introduction.protocol
