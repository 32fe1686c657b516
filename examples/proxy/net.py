"""Addresses, and the streams between front and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

import aiordma

if TYPE_CHECKING:
    from collections.abc import Callable

Mode = Literal["auto", "rdma", "tcp"]
P = TypeVar("P", bound="asyncio.BaseProtocol")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse HOST:PORT or [IPV6]:PORT. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT (such as 127.0.0.1:6379 or [::1]:6379)")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        try:
            host.encode("idna")  # as name resolution does
        except UnicodeError as exc:
            raise ValueError(f"{host!r} is no name of a host: {exc}") from exc
        return cls(host, int(port))


async def connect(factory: Callable[[], P], to: Address, mode: Mode) -> tuple[asyncio.Transport, P]:
    """Open a stream to the back. Raises OSError."""
    transport, protocol = await aiordma.create_connection(factory, to.host, to.port, mode=mode)
    return transport, cast("P", protocol)


async def serve(
    factory: Callable[[], asyncio.BaseProtocol], at: Address, mode: Mode
) -> asyncio.AbstractServer:
    """Open the back's listener. Raises OSError."""
    return await aiordma.create_server(factory, at.host, at.port, mode=mode)


def path_of(transport: asyncio.BaseTransport) -> str:
    """ "rdma", or "tcp" with the reason."""
    path = str(transport.get_extra_info("aiordma.path"))
    reason = transport.get_extra_info("aiordma.fallback_reason")
    return f"{path} ({reason})" if reason else path
