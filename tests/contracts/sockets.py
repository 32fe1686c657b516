"""Behaviours of the sockets that programs see and bring: options, ends, and `sock=` in every state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL

from .clients import begun, given
from .stage import KeepsOpen, Stage, attempt, outcome
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Iterator


def sock_of(end: Any) -> Any:
    """The socket that a transport shows."""
    return end.transport.get_extra_info("socket")


# ---- shutdown() of a transport's socket


async def end_all(stage: Stage) -> None:
    """All ends here, and only the notes are compared."""
    await stage.turns()
    for each in stage.protocols:
        each.transport.abort()
    await stage.both_end()
    for name in ("near", "far"):
        stage.trace.pop(name)


async def shut(stage: Stage, end: Any, how: int) -> bool:
    """shutdown() of the socket that a transport shows; false: uvloop's has none, and all ends here."""
    done = attempt(sock_of(end).shutdown, how)
    stage.note("shutdown", done)
    if done == "TypeError":
        await end_all(stage)
    return bool(done != "TypeError")


@behaviour
async def a_socket_that_is_shut_down(stage: Stage) -> None:
    """shutdown() of both directions, then close(): EOF at both ends, and no error."""
    near, far = await stage.pair()
    near.transport.write(b"before")
    await stage.until(lambda: far.data)
    if await shut(stage, near, socket.SHUT_RDWR):
        near.transport.close()
        await stage.both_end()


@behaviour
async def a_socket_that_is_shut_down_alone(stage: Stage) -> None:
    """shutdown() of both directions, without close(): both ends come to their end by the EOF."""
    near, _ = await stage.pair()
    if await shut(stage, near, socket.SHUT_RDWR):
        await stage.both_end()


@behaviour
async def a_socket_that_is_shut_down_at_the_server(stage: Stage) -> None:
    """The same from the accepting end, with an answer right before."""
    near, far = await stage.pair()
    near.transport.write(b"question")
    await stage.until(lambda: far.data)
    far.transport.write(b"answer")
    if await shut(stage, far, socket.SHUT_RDWR):
        far.transport.close()
        await stage.both_end()


@behaviour
async def a_socket_that_is_shut_down_for_writing(stage: Stage) -> None:
    """SHUT_WR: the peer gets everything and EOF, and may answer."""
    near, far = await stage.pair(far=KeepsOpen)
    near.transport.write(b"question")
    if await shut(stage, near, socket.SHUT_WR):
        await stage.until(lambda: "eof" in far.events)
        far.transport.write(b"answer")
        far.transport.close()
        await stage.both_end()


@behaviour
async def a_socket_that_is_shut_down_for_reading(stage: Stage) -> None:
    """SHUT_RD: an EOF at this end, which closes it, and then at the other one."""
    near, _ = await stage.pair()
    if await shut(stage, near, socket.SHUT_RD):
        await stage.both_end()


@behaviour
async def a_write_behind_a_shutdown(stage: Stage) -> None:
    """write() after SHUT_WR: no error of the call, and an end with a BrokenPipeError."""
    near, far = await stage.pair(far=KeepsOpen)
    if await shut(stage, near, socket.SHUT_WR):
        await stage.until(lambda: "eof" in far.events)
        stage.note("write", attempt(near.transport.write, b"too late"))
        await stage.until(lambda: near.ended)
        stage.note("near", list(near.events))
        del stage.trace["far"]


@behaviour
async def a_writer_whose_socket_is_shut_down(stage: Stage) -> None:
    """A stream of asyncio's whose socket is shut down reads to the end, as does its peer."""
    accepted: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    server = await stage.server.start_server(lambda r, w: accepted.append((r, w)), LOCAL, 0)
    reader, writer = await stage.client.open_connection(LOCAL, stage.keep(server))
    stage.check_path(writer)
    await stage.until(lambda: accepted)
    far_reader, far_writer = accepted[0]
    stage.writers += [writer, far_writer]
    writer.write(b"the last")
    await writer.drain()
    done = attempt(writer.get_extra_info("socket").shutdown, socket.SHUT_RDWR)
    stage.note("shutdown", done)
    if done == "TypeError":
        return
    stage.note("far", await outcome(far_reader.read()))
    stage.note("near", await outcome(reader.read()))
    writer.close()
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def a_socket_that_is_shut_down_after_the_end(stage: Stage) -> None:
    """shutdown() of a transport that has ended is an OSError."""
    near, _ = await stage.pair()
    sock = sock_of(near)
    near.transport.close()
    await stage.both_end()
    stage.note("shutdown", attempt(sock.shutdown, socket.SHUT_RDWR) in ("OSError", "TypeError"))


async def shut_duplicate(stage: Stage, end: Any, how: int) -> bool:
    """shutdown() of a duplicate of that socket, which is closed then; false as above."""

    def shutdown() -> None:
        with sock_of(end).dup() as first, first.dup() as second:
            second.shutdown(how)

    done = attempt(shutdown)
    stage.note("shutdown", done)
    if done == "TypeError":
        await end_all(stage)
    return bool(done != "TypeError")


@behaviour
async def a_duplicate_that_is_shut_down(stage: Stage) -> None:
    """shutdown() of both directions by a duplicate of the socket: EOF at both ends, and no error."""
    near, far = await stage.pair()
    near.transport.write(b"before")
    await stage.until(lambda: far.data)
    if await shut_duplicate(stage, near, socket.SHUT_RDWR):
        await stage.both_end()


@behaviour
async def a_duplicate_that_is_shut_down_for_writing(stage: Stage) -> None:
    """The same of SHUT_WR, at the accepting end: the peer gets everything and EOF, and may answer."""
    near, far = await stage.pair(near=KeepsOpen)
    far.transport.write(b"question")
    if await shut_duplicate(stage, far, socket.SHUT_WR):
        await stage.until(lambda: "eof" in near.events)
        near.transport.write(b"answer")
        near.transport.close()
        await stage.both_end()


@behaviour
async def a_duplicate_that_is_shut_down_for_reading(stage: Stage) -> None:
    """The same of SHUT_RD: an EOF at this end, which closes it, and then at the other one."""
    near, _ = await stage.pair()
    if await shut_duplicate(stage, near, socket.SHUT_RD):
        await stage.both_end()


@behaviour
async def a_duplicate_as_a_socket(stage: Stage) -> None:
    """A duplicate has a descriptor of its own, and the socket's names; its close() ends nothing."""
    near, far = await stage.pair()
    sock = sock_of(near)
    duplicate = attempt(sock.dup)
    if duplicate == "TypeError":
        stage.note("duplicate", duplicate)
        await end_all(stage)
        return
    stage.note("own", duplicate.fileno() != sock.fileno())
    stage.note("timeout", duplicate.gettimeout())
    stage.note("inherited", duplicate.get_inheritable())
    stage.note(
        "names",
        (duplicate.getsockname(), duplicate.getpeername()) == (sock.getsockname(), sock.getpeername()),
    )
    stage.note("wrong", attempt(duplicate.shutdown, 7))
    duplicate.close()
    stage.note("closed", attempt(duplicate.shutdown, socket.SHUT_WR))
    near.transport.write(b"goes on")
    await stage.until(lambda: far.data)


@behaviour
async def a_descriptor_that_is_shut_down(stage: Stage) -> None:
    """shutdown() of both directions by the kernel, of a duplicate of the descriptor."""
    near, far = await stage.pair()
    near.transport.write(b"before")
    await stage.until(lambda: far.data)
    with socket.socket(fileno=os.dup(sock_of(near).fileno())) as duplicate:
        stage.note("shutdown", attempt(duplicate.shutdown, socket.SHUT_RDWR))
    await stage.both_end()


# ---- its options


@behaviour
async def options_of_the_socket_of_a_transport(stage: Stage) -> None:
    """Options can be set, and are read as they were set."""
    near, far = await stage.pair()
    for end in (near, far):
        sock = sock_of(end)
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12_345),
            (socket.IPPROTO_IP, socket.IP_TOS, 0x10),
            (socket.SOL_SOCKET, socket.SO_SNDBUF, 30_000),
            (socket.SOL_SOCKET, socket.SO_RCVBUF, 30_000),
        ):
            sock.setsockopt(level, option, value)
            stage.note("value", sock.getsockopt(level, option))
        stage.note("unknown", attempt(sock.getsockopt, socket.IPPROTO_TCP, 9999))
    near.transport.write(bytes(100_000))  # it goes on with all of them
    await stage.until(lambda: len(far.data) == 100_000)
    far.events.clear()


@behaviour
async def a_socket_that_must_not_block(stage: Stage) -> None:
    """The socket of a transport does not become a blocking one."""
    near, _ = await stage.pair()
    sock = sock_of(near)
    stage.note("blocking", attempt(sock.setblocking, True))
    stage.note("timeout", attempt(sock.settimeout, 5))
    stage.note("neither", [attempt(sock.setblocking, False), attempt(sock.settimeout, 0)])
    stage.note("timeout", sock.gettimeout())


@behaviour
async def the_descriptor_of_a_transport(stage: Stage) -> None:
    """It is not inherited, dup() makes another one, and none is left after the end."""
    near, _ = await stage.pair()
    sock = sock_of(near)
    stage.note("inherited", sock.get_inheritable())
    with sock.dup() as twin:
        stage.note("twin", [twin.fileno() != sock.fileno(), twin.getpeername() == sock.getpeername()])
    near.transport.close()
    await stage.both_end()
    shown = sock_of(near)
    stage.note("open", shown is not None and shown.fileno() >= 0)


@behaviour
async def linger_and_close(stage: Stage) -> None:
    """SO_LINGER with time does not keep close() from ending with what was written."""
    near, _ = await stage.pair()
    sock_of(near).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\5\0\0\0")
    near.transport.write(b"the last")
    near.transport.close()
    await stage.both_end()


# ---- sock= in every state


@contextlib.contextmanager
def two_of_unix() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected pair of Unix sockets."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@behaviour
async def a_given_unix_socket(stage: Stage) -> None:
    """sock=: a stream of Unix's is taken by both functions."""
    with two_of_unix() as (one, other):
        near = await begun(stage, sock=one)
        _, far = await stage.server.connect_accepted_socket(stage.far(), other)
        near.transport.write(b"x")
        near.transport.close()
        await stage.both_end()
        stage.note("data", bytes(far.data))


@behaviour
async def a_given_socket_that_is_closed(stage: Stage) -> None:
    """sock=: a closed one is an error, for both."""
    sock = socket.socket()
    sock.close()
    stage.note("client", await begun(stage, sock=sock))
    stage.note("server", await outcome(stage.server.create_server(stage.far(), sock=sock)))
    stage.trace.pop("near", None)  # a protocol may have been made


@behaviour
async def a_given_socket_that_blocks(stage: Stage) -> None:
    """sock=: a blocking one becomes one that does not block."""
    port = await stage.listen()
    sock = await given(stage, port)
    sock.setblocking(True)
    near = await begun(stage, sock=sock)
    stage.note("timeout", sock_of(near).gettimeout())
    near.transport.write(b"x")
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_given_socket_that_has_sent(stage: Stage) -> None:
    """sock=: what the program has sent before comes before what the transport sends."""
    port = await stage.listen()
    sock = await given(stage, port)
    await stage.loop.sock_sendall(sock, b"early ")
    near = await begun(stage, sock=sock)
    near.transport.write(b"late")
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_given_socket_that_has_half_closed(stage: Stage) -> None:
    """sock=: after SHUT_WR of the program's own, the peer's answer is read to its end."""

    class Answers(KeepsOpen):
        def eof_received(self) -> bool:
            self.transport.write(b"answer")
            self.transport.close()
            return super().eof_received()

    port = await stage.listen(stage.far(Answers))
    sock = await given(stage, port)
    await stage.loop.sock_sendall(sock, b"question")
    sock.shutdown(socket.SHUT_WR)
    near = await begun(stage, sock=sock)
    await stage.until(lambda: near.ended and stage.made("far") and stage.made("far")[0].ended)


@behaviour
async def a_given_socket_that_is_bound(stage: Stage) -> None:
    """sock=: its own local address stays."""
    port = await stage.listen()
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind(("127.0.0.4", 0))
    await stage.loop.sock_connect(sock, (LOCAL, port))
    near = await begun(stage, sock=sock)
    stage.note("host", near.transport.get_extra_info("sockname")[0])
    await stage.until(lambda: stage.made("far"))
    stage.note("seen", stage.made("far")[0].transport.get_extra_info("peername")[0])


_OPTIONS: list[tuple[int, int, Any]] = [
    (socket.SOL_SOCKET, socket.SO_SNDBUF, 40_000),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\7\0\0\0"),
    (socket.IPPROTO_IP, socket.IP_TTL, 9),
    (socket.IPPROTO_IP, socket.IP_TOS, 0x08),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 33),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 54_321),
    (socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"),
]


def set_options(sock: socket.socket) -> None:
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)


def options_of(sock: Any) -> list[Any]:
    """The values of those options."""
    sizes = ([len(value) + 8] if isinstance(value, bytes) else [] for _, _, value in _OPTIONS)
    return [
        sock.getsockopt(level, option, *size)
        for (level, option, _), size in zip(_OPTIONS, sizes, strict=True)
    ]


@behaviour
async def options_of_a_given_socket(stage: Stage) -> None:
    """sock=: what the program has set stays set."""
    sock = await given(stage, await stage.listen())
    set_options(sock)
    near = await begun(stage, sock=sock)
    stage.note("values", options_of(sock_of(near)))
    await stage.until(lambda: stage.made("far"))


@behaviour
async def options_of_a_given_listener(stage: Stage) -> None:
    """sock=: a server's socket keeps what the program has set, and its connections get it from there."""
    sock = socket.socket()
    set_options(sock)
    sock.bind((LOCAL, 0))
    server = await stage.server.create_server(stage.far(), sock=sock)
    near = await stage.connect(stage.near(), stage.keep(server))
    await stage.until(lambda: stage.made("far"))
    (far,) = stage.made("far")
    for shown in (sock, server.sockets[0], sock_of(far)):
        stage.note("values", options_of(shown))
    near.transport.write(bytes(100_000))  # it goes on with all of them
    await stage.until(lambda: len(far.data) == 100_000)
    far.events.clear()


@behaviour
async def a_given_socket_for_streams(stage: Stage) -> None:
    """sock= of open_connection(): the streams are the socket's, which wait_closed() closes."""
    accepted: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    server = await stage.server.start_server(lambda r, w: accepted.append((r, w)), LOCAL, 0)
    sock = await given(stage, stage.keep(server))
    reader, writer = await stage.client.open_connection(sock=sock)
    await stage.until(lambda: accepted)
    stage.writers += [writer, accepted[0][1]]
    writer.write(b"question\n")
    stage.note("question", await accepted[0][0].readline())
    accepted[0][1].write(b"answer\n")
    stage.note("answer", await reader.readline())
    writer.close()
    await writer.wait_closed()
    await stage.until(lambda: sock.fileno() == -1)
    stage.note("end", await accepted[0][0].read())


@behaviour
async def an_accepted_socket_whose_client_has_left(stage: Stage) -> None:
    """connect_accepted_socket() after the client has closed: its data, EOF, and an end."""
    with socket.create_server((LOCAL, 0)) as listener:
        listener.setblocking(False)
        client = socket.socket()
        client.setblocking(False)
        await stage.loop.sock_connect(client, listener.getsockname())
        await stage.loop.sock_sendall(client, b"gone")
        client.close()
        accepted, _ = await stage.loop.sock_accept(listener)
        _, far = await stage.server.connect_accepted_socket(stage.far(), accepted)
        await stage.until(lambda: far.ended)


@behaviour
async def accepted_sockets_that_do_not_fit(stage: Stage) -> None:
    """connect_accepted_socket() refuses datagrams, and timeouts of TLS without TLS."""
    function = stage.server.connect_accepted_socket
    with socket.socket(type=socket.SOCK_DGRAM) as wrong, socket.socket() as sock:
        stage.note("datagrams", await outcome(function(stage.far(), wrong)))
        stage.note("handshake", await outcome(function(stage.far(), sock, ssl_handshake_timeout=1.0)))
        stage.note("shutdown", await outcome(function(stage.far(), sock, ssl_shutdown_timeout=1.0)))
