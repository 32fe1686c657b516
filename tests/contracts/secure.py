"""Behaviours of TLS: `ssl=` and start_tls()."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .stage import Stage, Traced, attempt, outcome
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


async def pair(stage: Stage, **options: Any) -> tuple[Any, Any]:
    """The protocols of both ends, inside TLS."""
    client, server = tls_contexts()
    port = await stage.listen(ssl=server)
    near = (await stage.client.create_connection(stage.near(), LOCAL, port, ssl=client, **options))[1]
    await stage.until(lambda: stage.made("far"))
    return near, stage.made("far")[0]


@behaviour
async def data_inside_tls(stage: Stage) -> None:
    """Both directions, in order, and an end without an error."""
    near, far = await pair(stage)
    near.transport.write(b"question")
    await stage.until(lambda: far.data == b"question")
    far.transport.writelines([b"ans", bytearray(b"wer")])
    await stage.until(lambda: near.data == b"answer")
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_greeting_inside_tls(stage: Stage) -> None:
    """A server that speaks first inside TLS, and closes behind the answer."""

    class Greets(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.write(b"220 ready")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(b" bye")
            self.transport.close()

    client, server = tls_contexts()
    port = await stage.listen(stage.far(Greets), ssl=server)
    near = (await stage.client.create_connection(stage.near(), LOCAL, port, ssl=client))[1]
    await stage.until(lambda: near.data == b"220 ready")
    near.transport.write(b"hello")
    await stage.both_end()


@behaviour
async def what_tls_tells(stage: Stage) -> None:
    """The extra info about the session at both ends."""
    near, far = await pair(stage)
    for end in (near, far):
        get = end.transport.get_extra_info
        stage.note("version", get("ssl_object").version())
        stage.note("cipher", get("cipher")[1])
        stage.note("context", type(get("sslcontext")).__name__)
        stage.note("names", [get("peername")[0], get("sockname")[0], get("nothing", 7)])
    stage.note("certificate", bool(near.transport.get_extra_info("peercert")))


@behaviour
async def no_half_close_inside_tls(stage: Stage) -> None:
    """can_write_eof() is false, and write_eof() not implemented."""
    near, _ = await pair(stage)
    stage.note("can", near.transport.can_write_eof())
    stage.note("write_eof", attempt(near.transport.write_eof))


@behaviour
async def much_inside_tls(stage: Stage) -> None:
    """A large write before close() arrives whole."""
    near, far = await pair(stage)
    near.transport.write(bytes(2_000_000))
    near.transport.close()
    await stage.both_end()
    stage.note("arrived", len(far.data))
    for each in (near, far):
        each.events.clear()


@behaviour
async def tls_later(stage: Stage) -> None:
    """start_tls() at both ends of a connection that carries data already."""
    client, server = tls_contexts()
    near, far = await stage.pair()
    near.transport.write(b"STARTTLS")
    await stage.until(lambda: far.data == b"STARTTLS")

    async def upgrade(api: Any, end: Traced, context: ssl.SSLContext, **options: Any) -> None:
        end.transport = await api.start_tls(end.transport, end, context, **options)

    accepting = stage.loop.create_task(upgrade(stage.server, far, server, server_side=True))
    await upgrade(stage.client, near, client, server_hostname=LOCAL)
    await accepting
    near.transport.write(b" and secrets")
    await stage.until(lambda: far.data == b"STARTTLS and secrets")
    near.transport.close()
    await stage.both_end()


@behaviour
async def tls_of_something_else(stage: Stage) -> None:
    """start_tls() needs a context."""
    near, _ = await stage.pair()
    wrong: Any = None
    stage.note("error", await outcome(stage.client.start_tls(near.transport, near, wrong)))


@contextlib.asynccontextmanager
async def silent(stage: Stage) -> AsyncIterator[tuple[int, Callable[[], Awaitable[socket.socket]]]]:
    """A plain listener that says nothing: its port, and a function that accepts a connection."""
    with socket.create_server((LOCAL, 0)) as listening, contextlib.ExitStack() as accepted:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        stage.met_before(port)

        async def accept() -> socket.socket:
            sock, _ = await stage.loop.sock_accept(listening)
            return accepted.enter_context(sock)

        yield port, accept


class Session(NamedTuple):
    """The other end of TLS, in the hands of the behaviour."""

    object: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


async def accepted(
    stage: Stage, sock: socket.socket, context: ssl.SSLContext
) -> tuple[Session, socket.socket]:
    """Do the server's part of a handshake."""
    sock.setblocking(False)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = Session(context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
    while True:
        done = True
        try:
            session.object.do_handshake()
        except ssl.SSLWantReadError:
            done = False
        await stage.loop.sock_sendall(sock, outgoing.read())
        if done:
            return session, sock
        incoming.write(await stage.loop.sock_recv(sock, 65536))


@behaviour
async def a_server_that_says_nothing(stage: Stage) -> None:
    """A handshake of a client has a time limit, which is ConnectionAbortedError; no protocol is connected."""
    client, _ = tls_contexts()
    async with silent(stage) as (port, _):
        connecting = stage.client.create_connection(
            stage.near(), LOCAL, port, ssl=client, ssl_handshake_timeout=0.05
        )
        stage.note("error", await outcome(connecting))
    stage.trace["near"] = [event for event in stage.trace.get("near", []) if event == "made"]


@behaviour
async def a_handshake_that_is_cancelled(stage: Stage) -> None:
    """The connection is closed: its peer reads to the end."""
    client, _ = tls_contexts()
    async with silent(stage) as (port, accept):
        connecting = stage.loop.create_task(
            stage.client.create_connection(stage.near(), LOCAL, port, ssl=client)
        )
        sock = await accept()
        hello = await stage.loop.sock_recv(sock, 5)
        connecting.cancel()
        stage.note("error", await outcome(connecting))
        stage.note("hello", hello[0])
        while await outcome(stage.loop.sock_recv(sock, 4096)) not in (b"", "ConnectionResetError"):
            pass
    stage.trace["near"] = [event for event in stage.trace.get("near", []) if event == "made"]


@behaviour
async def a_client_that_says_nothing(stage: Stage) -> None:
    """A handshake of a server has a time limit: the client is closed, and no protocol is connected."""
    _, server = tls_contexts()
    port = await stage.listen(ssl=server, ssl_handshake_timeout=0.05)
    with socket.socket() as sock:
        sock.setblocking(False)
        await stage.loop.sock_connect(sock, (LOCAL, port))
        stage.note("end", await outcome(stage.loop.sock_recv(sock, 100)))
    stage.note("made", len(stage.made("far")))


@behaviour
async def what_is_no_tls(stage: Stage) -> None:
    """A server of TLS closes clients that begin with something else, and serves the next one."""
    client, server = tls_contexts()
    port = await stage.listen(ssl=server)
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), bytes(3000)):
        with socket.socket() as sock:
            sock.setblocking(False)
            await stage.loop.sock_connect(sock, (LOCAL, port))
            await stage.loop.sock_sendall(sock, garbage)
            while await outcome(stage.loop.sock_recv(sock, 4096)) not in (b"", "ConnectionResetError"):
                pass
    stage.note("made", len(stage.made("far")))
    near = (await stage.client.create_connection(stage.near(), LOCAL, port, ssl=client))[1]
    await stage.until(lambda: stage.made("far"))
    near.transport.write(b"served")
    await stage.until(lambda: stage.made("far")[0].data == b"served")
    near.transport.close()
    await stage.until(lambda: near.ended and stage.made("far")[0].ended)


@behaviour
async def a_certificate_of_another(stage: Stage) -> None:
    """The name is checked: SSLCertVerificationError, and no protocol is connected."""
    client, server = tls_contexts()
    port = await stage.listen(ssl=server)
    connecting = stage.client.create_connection(
        stage.near(), LOCAL, port, ssl=client, server_hostname="other.example"
    )
    stage.note("error", await outcome(connecting))


@behaviour
async def a_peer_that_never_ends_tls(stage: Stage) -> None:
    """close() waits for the peer's end of TLS only as long as ssl_shutdown_timeout."""
    client, server = tls_contexts()
    async with silent(stage) as (port, accept):
        connecting = stage.loop.create_task(
            stage.client.create_connection(stage.near(), LOCAL, port, ssl=client, ssl_shutdown_timeout=0.05)
        )
        session, sock = await accepted(stage, await accept(), server)
        near = (await connecting)[1]
        near.transport.write(b"the last")
        near.transport.close()
        await stage.until(lambda: near.ended)
        while (data := await outcome(stage.loop.sock_recv(sock, 4096))) not in (b"", "ConnectionResetError"):
            session.incoming.write(data)
        stage.note("arrived", session.object.read(100))
