"""What a stream knows about itself, as anyio's typed attributes.

``stream.extra(RdmaAttribute.path)`` beside anyio's own ``SocketAttribute.local_address``,
``remote_address``, ``local_port``, ``remote_port`` and ``family``. All are captured when the connection is
made, so they stay valid after it was closed or lost. There is deliberately no ``raw_socket``: the TCP
connection under an RDMA stream says nothing about the stream's data.
"""

from __future__ import annotations

from socket import AddressFamily
from typing import TYPE_CHECKING, Any

from anyio import TypedAttributeSet, typed_attribute
from anyio.abc import SocketAttribute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLObject

    from .addresses import Address
    from .errors import FallbackReason


class RdmaAttribute(TypedAttributeSet):
    """Attributes of an :class:`~aiordma.RdmaStream`."""

    #: "rdma" or "tcp"; of a datagram endpoint "rdma" or "udp"
    path: str = typed_attribute()
    #: why the stream runs on TCP; absent on the RDMA path
    fallback_reason: FallbackReason = typed_attribute()


def address_attributes(local: Address, remote: Address | None) -> Mapping[Any, Callable[[], Any]]:
    """anyio's ``SocketAttribute`` items for a pair of addresses; a listener has no remote one."""
    family = AddressFamily.AF_INET6 if ":" in local[0] else AddressFamily.AF_INET
    attributes: dict[Any, Callable[[], Any]] = {
        SocketAttribute.family: lambda: family,
        SocketAttribute.local_address: lambda: local,
        SocketAttribute.local_port: lambda: local[1],
    }
    if remote is not None:
        attributes[SocketAttribute.remote_address] = lambda: remote
        attributes[SocketAttribute.remote_port] = lambda: remote[1]
    return attributes


def tls_attributes(session: SSLObject) -> Mapping[Any, Callable[[], Any]]:
    """anyio's ``TLSAttribute`` items: the peer of the TLS session, and its parameters."""
    from anyio.streams.tls import TLSAttribute

    return {
        TLSAttribute.alpn_protocol: session.selected_alpn_protocol,
        TLSAttribute.channel_binding_tls_unique: session.get_channel_binding,
        TLSAttribute.cipher: session.cipher,
        TLSAttribute.peer_certificate: lambda: session.getpeercert(False),
        TLSAttribute.peer_certificate_binary: lambda: session.getpeercert(True),
        TLSAttribute.server_side: lambda: session.server_side,
        TLSAttribute.ssl_object: lambda: session,
        TLSAttribute.tls_version: session.version,
    }
