"""Behaviours of create_datagram_endpoint(): arguments, the socket that it shows, calls in callbacks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tests.roles import LOCAL

from .datagrams import Datagrams, both_close, pair
from .stage import Stage, attempt, outcome
from .table import behaviour

#: Of sockets that programs bring.
_OPTIONS = {"SO_SNDBUF": 40_000, "SO_RCVBUF": 50_000, "SO_BROADCAST": 1, "SO_REUSEADDR": 1, "SO_PRIORITY": 3}


async def opened(stage: Stage, end: str, kind_of: type[Datagrams] = Datagrams, **options: Any) -> Any:
    """An endpoint's protocol, or the kind of the error. "near" is the client's, "far" the server's."""
    functions = stage.client if end == "near" else stage.server

    async def create() -> Any:
        return await functions.create_datagram_endpoint(lambda: kind_of(stage, end), **options)

    done = await outcome(create())
    return done if isinstance(done, str) else done[1]


def bound(**options: int) -> socket.socket:
    """A socket of datagrams at a free port."""
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.setblocking(False)
    for name, value in options.items():
        sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    sock.bind((LOCAL, 0))
    return sock


async def talk(stage: Stage, near: Any, far: Any) -> None:
    """A question to the far end by its address, an answer, and their ends."""
    address = far.transport.get_extra_info("sockname")
    near.transport.sendto(b"question", address)
    await stage.until(lambda: far.sender)
    far.transport.sendto(b"answer", far.sender)
    await stage.until(lambda: near.sender)
    await both_close(stage, near, far)


@behaviour
async def given_datagram_sockets(stage: Stage) -> None:
    """sock=: bound sockets become the endpoints', and are closed with them."""
    socks = bound(), bound()
    near, far = await opened(stage, "near", sock=socks[0]), await opened(stage, "far", sock=socks[1])
    for end, sock in ((near, socks[0]), (far, socks[1])):
        stage.note("name", end.transport.get_extra_info("sockname") == sock.getsockname())
    await talk(stage, near, far)
    await stage.until(lambda: all(sock.fileno() == -1 for sock in socks))


@behaviour
async def options_of_given_datagram_sockets(stage: Stage) -> None:
    """sock=: what the program has set stays set, before and after datagrams are sent."""
    near, far = [await opened(stage, end, sock=bound(**_OPTIONS)) for end in ("near", "far")]
    socks = [end.transport.get_extra_info("socket") for end in (near, far)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
    for _ in range(2):
        for sock in socks:
            names = [sock.getsockopt(socket.SOL_SOCKET, getattr(socket, name)) for name in _OPTIONS]
            stage.note("values", [*names, sock.getsockopt(socket.IPPROTO_IP, socket.IP_TTL)])
        near.transport.sendto(b"question", far.transport.get_extra_info("sockname"))
        await stage.until(lambda: far.sender)
        far.sender = None
    await both_close(stage, near, far)


@behaviour
async def a_given_datagram_socket_that_is_connected(stage: Stage) -> None:
    """sock=: a connected one needs no addresses."""
    far = await opened(stage, "far", local_addr=(LOCAL, 0))
    sock = bound()
    sock.connect(far.transport.get_extra_info("sockname"))
    near = await opened(stage, "near", sock=sock)
    stage.note("peer", near.transport.get_extra_info("peername") == sock.getpeername())
    near.transport.sendto(b"question")
    await stage.until(lambda: far.sender)
    await both_close(stage, near, far)


@behaviour
async def datagram_arguments_that_do_not_fit(stage: Stage) -> None:
    """sock= goes with no other argument, and must be one of datagrams; addresses are pairs."""
    with bound() as sock, socket.socket() as stream:
        for options in (
            {"sock": stream},
            {"sock": sock, "local_addr": (LOCAL, 0)},
            {"sock": sock, "remote_addr": (LOCAL, 9)},
            {"sock": sock, "family": socket.AF_INET},
            {"sock": sock, "reuse_port": True},
            {"sock": sock, "allow_broadcast": True},
            {"nonsense": 1, "local_addr": (LOCAL, 0)},
        ):
            stage.note("error", await opened(stage, "near", **options))
    stage.trace.pop("near", None)


@behaviour
async def datagrams_that_may_be_broadcast(stage: Stage) -> None:
    """allow_broadcast: the option is set, and the endpoint works as another one."""
    near = await opened(stage, "near", local_addr=(LOCAL, 0), allow_broadcast=True)
    far = await opened(stage, "far", local_addr=(LOCAL, 0))
    for end in (near, far):
        sock = end.transport.get_extra_info("socket")
        stage.note("broadcast", sock.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST))
    await talk(stage, near, far)


@behaviour
async def a_datagram_port_of_several(stage: Stage) -> None:
    """reuse_port: several endpoints share a port; without it, the second one is an OSError."""
    far = await opened(stage, "far", local_addr=(LOCAL, 0), reuse_port=True)
    address = far.transport.get_extra_info("sockname")
    second = await opened(stage, "far", local_addr=address, reuse_port=True)
    stage.note("same", second.transport.get_extra_info("sockname") == address)
    if isinstance(stage.loop, asyncio.BaseEventLoop):  # uvloop leaves its socket open
        stage.note("without it", await opened(stage, "near", local_addr=address))
    await both_close(stage, far, second)


@behaviour
async def datagrams_of_a_family(stage: Stage) -> None:
    """family, proto and flags choose among the addresses of a name."""
    far = await opened(stage, "far", local_addr=("localhost", 0), family=socket.AF_INET)
    stage.note("host", far.transport.get_extra_info("sockname")[0])
    port = far.transport.get_extra_info("sockname")[1]
    for options in (
        {"family": socket.AF_INET},
        {"family": socket.AF_INET, "proto": socket.IPPROTO_UDP},
        {"family": socket.AF_INET, "flags": socket.AI_NUMERICSERV},
    ):
        near = await opened(stage, "near", remote_addr=("localhost", port), **options)
        stage.note("peer", near.transport.get_extra_info("peername")[0])
        far.sender = None
        near.transport.sendto(b"x")
        await stage.until(lambda: far.sender)
        await both_close(stage, near)
    await both_close(stage, far)


@behaviour
async def a_datagram_endpoint_of_a_family_alone(stage: Stage) -> None:
    """Without addresses, a family makes an endpoint that is bound when it sends."""
    near = await opened(stage, "near", family=socket.AF_INET)
    far = await opened(stage, "far", local_addr=(LOCAL, 0))
    await talk(stage, near, far)


@behaviour
async def the_socket_of_a_datagram_endpoint(stage: Stage) -> None:
    """The extra info "socket" is the endpoint's, for its address and options."""
    near, far = await pair(stage)
    for end in (near, far):
        sock = end.transport.get_extra_info("socket")
        stage.note("type", [sock.family.name, sock.type.name])
        stage.note("address", sock.getsockname() == end.transport.get_extra_info("sockname"))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 7)
        stage.note("option", sock.getsockopt(socket.IPPROTO_IP, socket.IP_TTL))
    near.transport.sendto(b"x")
    await stage.until(lambda: far.sender)
    await both_close(stage, near, far)


@behaviour
async def a_datagram_that_is_too_large(stage: Stage) -> None:
    """It is told to error_received(), and the next one arrives."""
    near, far = await pair(stage)
    stage.note("sendto", attempt(near.transport.sendto, bytes(70_000)))
    await stage.until(lambda: len(near.events) > 1)
    near.transport.sendto(b"fits")
    await stage.until(lambda: far.sender)
    await both_close(stage, near, far)


@behaviour
async def another_datagram_protocol(stage: Stage) -> None:
    """set_protocol(): what comes later goes to the new protocol."""
    near, far = await pair(stage)
    second = Datagrams(stage, "second")
    second.transport = far.transport
    far.transport.set_protocol(second)
    stage.note("protocol", far.transport.get_protocol() is second)
    stage.protocols.remove(far)
    near.transport.sendto(b"for the second")
    await stage.until(lambda: second.sender)
    await both_close(stage, near, second)


@behaviour
async def datagrams_in_connection_made(stage: Stage) -> None:
    """sendto() in connection_made() sends."""

    class Speaks(Datagrams):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.sendto(b"hello")

    far = await opened(stage, "far", local_addr=(LOCAL, 0))
    address = far.transport.get_extra_info("sockname")
    near = await opened(stage, "near", Speaks, remote_addr=address)
    await stage.until(lambda: far.sender)
    await both_close(stage, near, far)


@behaviour
async def close_in_datagram_received(stage: Stage) -> None:
    """close() in datagram_received(): nothing more comes, and connection_lost(None) follows."""

    class Closes(Datagrams):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            self.transport.close()

    near, far = await pair(stage, Closes)
    for _ in range(3):
        near.transport.sendto(b"x")
    await stage.until(lambda: far.ended)
    await stage.turns()
    await both_close(stage, near)


@behaviour
async def abort_of_datagrams(stage: Stage) -> None:
    """abort(): connection_lost(None) once, from the loop."""
    near, far = await pair(stage)
    near.transport.abort()
    stage.note("lost inside", near.ended)
    near.transport.abort()
    await both_close(stage, near, far)


@behaviour
async def an_error_of_datagrams_connection_lost(stage: Stage) -> None:
    """An error of connection_lost() is reported."""

    class Fails(Datagrams):
        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            raise ZeroDivisionError

    near, far = await pair(stage, Fails)
    await both_close(stage, near, far)
    await stage.until(lambda: "reported" in stage.trace)
