"""Behaviours of datagram endpoints."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tests.roles import LOCAL

from .stage import Stage, attempt, kind
from .table import behaviour


class Datagrams(asyncio.DatagramProtocol):
    """Notes what comes. A datagram alone is sent at a time, so none is lost."""

    def __init__(self, stage: Stage, end: str) -> None:
        self.end = end
        self.events = stage.trace.setdefault(end, [])
        self.transport: Any = None
        self.ended = False
        self.sender: Any = None
        stage.protocols.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.sender = addr
        self.events.append((type(data).__name__, data))

    def error_received(self, exc: Exception) -> None:
        self.events.append(("error", kind(exc)))

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append(("lost", kind(exc)))
        self.ended = True


async def pair(stage: Stage, far: type[Datagrams] = Datagrams) -> tuple[Any, Any]:
    """An endpoint that sends to another one only, and that one."""
    _, receives = await stage.server.create_datagram_endpoint(
        lambda: far(stage, "far"), local_addr=(LOCAL, 0)
    )
    address = receives.transport.get_extra_info("sockname")
    _, sends = await stage.client.create_datagram_endpoint(
        lambda: Datagrams(stage, "near"), remote_addr=address
    )
    return sends, receives


async def both_close(stage: Stage, *ends: Any) -> None:
    """Close them, and wait for it."""
    for end in ends:
        end.transport.close()
    await stage.until(lambda: all(end.ended for end in ends))


@behaviour
async def a_datagram_there_and_back(stage: Stage) -> None:
    """A datagram to the only peer, and an answer to its sender."""
    near, far = await pair(stage)
    near.transport.sendto(b"question")
    await stage.until(lambda: far.sender)
    stage.note("sender", far.sender == near.transport.get_extra_info("sockname"))
    far.transport.sendto(b"answer", far.sender)
    await stage.until(lambda: near.sender)
    await both_close(stage, near, far)


@behaviour
async def kinds_of_datagrams(stage: Stage) -> None:
    """sendto() takes bytes, bytearray and memoryview, and refuses the rest."""
    near, far = await pair(stage)
    for data in (b"a", bytearray(b"b"), memoryview(b"c")):
        far.sender = None
        near.transport.sendto(data)
        await stage.until(lambda: far.sender)
    for wrong in ("text", 7, None):
        stage.note("wrong", attempt(near.transport.sendto, wrong))
    await both_close(stage, near, far)


@behaviour
async def a_datagram_to_another(stage: Stage) -> None:
    """An endpoint with a peer refuses another address."""
    near, far = await pair(stage)
    stage.note("another", attempt(near.transport.sendto, b"x", (LOCAL, 9)))
    await both_close(stage, near, far)


@behaviour
async def datagrams_after_close(stage: Stage) -> None:
    """close(): is_closing(), sendto() does nothing, connection_lost(None) once and from the loop."""
    near, far = await pair(stage)
    near.transport.close()
    stage.note("lost inside", near.ended)
    stage.note("closing", near.transport.is_closing())
    near.transport.close()
    stage.note("abort", attempt(near.transport.abort))
    await both_close(stage, near, far)


@behaviour
async def a_datagram_handler_that_fails(stage: Stage) -> None:
    """An error of datagram_received() is reported, and the next datagram comes."""

    class Fails(Datagrams):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if data == b"bad":
                raise ZeroDivisionError

    near, far = await pair(stage, Fails)
    near.transport.sendto(b"bad")
    await stage.until(lambda: "reported" in stage.trace)
    near.transport.sendto(b"good")
    await stage.until(lambda: ("bytes", b"good") in far.events)
    await both_close(stage, near, far)


@behaviour
async def what_a_datagram_endpoint_tells(stage: Stage) -> None:
    """peername and sockname of both, and a default for what is unknown."""
    near, far = await pair(stage)
    for end in (near, far):
        get = end.transport.get_extra_info
        stage.note("names", [get("peername") is None, get("sockname")[0], get("nothing", 7)])
    stage.note("peer", near.transport.get_extra_info("peername") == far.transport.get_extra_info("sockname"))
    stage.note("size", near.transport.get_write_buffer_size())
    await both_close(stage, near, far)


async def send_until_refused(stage: Stage, near: Any) -> None:
    """Send to a port that nobody has; what error_received() got in the end."""
    refused = ("error", "ConnectionRefusedError")

    def told() -> bool:
        near.transport.sendto(b"in vain")
        return refused in near.events

    await stage.until(told)
    await stage.turns()  # what was sent last is refused, too
    stage.note("closing", near.transport.is_closing())
    near.transport.close()
    await stage.until(lambda: near.ended)
    near.events[:] = [event for i, event in enumerate(near.events) if near.events.index(event) == i]


@behaviour
async def datagrams_to_a_closed_port(stage: Stage) -> None:
    """A port that nobody has: ConnectionRefusedError at error_received(), and the endpoint goes on."""
    with socket.socket(type=socket.SOCK_DGRAM) as free:
        free.bind((LOCAL, 0))
        address = free.getsockname()
    _, near = await stage.client.create_datagram_endpoint(
        lambda: Datagrams(stage, "near"), remote_addr=address
    )
    await send_until_refused(stage, near)


@behaviour
async def datagrams_to_a_peer_that_has_closed(stage: Stage) -> None:
    """The same behind a datagram that arrived: the peer's endpoint is closed then."""
    near, far = await pair(stage)
    near.transport.sendto(b"question")
    await stage.until(lambda: far.sender)
    await both_close(stage, far)
    await send_until_refused(stage, near)
