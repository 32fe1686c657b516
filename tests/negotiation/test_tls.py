"""TLS around the negotiation, and around the payload unless the user lets it go by RDMA."""

from __future__ import annotations

import contextlib
import socket
import ssl
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest
import trustme
from anyio.streams.tls import TLSAttribute, TLSStream

from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.pipes.tls import TlsLayer
from aiordma.proto.clc import Proposal
from aiordma.streams.connector import connect
from tests.health import until
from tests.virtual import in_virtual_time

from .serving import LOCAL, check_echo, echo, echo_plain, plain_server, serving, tcp_pair

if TYPE_CHECKING:
    from anyio.abc import SocketStream

    from aiordma.streams.stream import RdmaStream

    from .fake import Engine

pytestmark = pytest.mark.anyio

CA = trustme.CA()


@pytest.fixture(scope="module")
def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(LOCAL, "server.example").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
def contexts(request: pytest.FixtureRequest) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A client's and a server's, of one version of TLS."""
    client = ssl.create_default_context()
    CA.configure_trust(client)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(LOCAL).configure_cert(server)
    client.maximum_version = client.minimum_version = request.param
    return client, server


async def test_payload_stays_inside_tls_by_default(
    engine: Engine, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    client, server = contexts
    async with serving(ssl=server) as listener:
        async with await connect(LOCAL, listener.port, ssl=client) as stream:
            assert stream.path == "tcp"
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.code == Code.TLS_PAYLOAD_POLICY
            assert stream.extra(TLSAttribute.tls_version) == client.minimum_version.name.replace("_", ".")
            assert stream.extra(TLSAttribute.peer_certificate)
            await check_echo(stream)
    assert engine.proposals == 0


@pytest.mark.parametrize("first_contact", [True, False])
async def test_negotiation_inside_tls(
    engine: Engine, contexts: tuple[ssl.SSLContext, ssl.SSLContext], first_contact: bool
) -> None:
    engine.first_contact = first_contact
    client, server = contexts
    async with serving(ssl=server, rdma_outside_tls=True) as listener:
        for _ in range(2):
            async with await connect(LOCAL, listener.port, ssl=client, rdma_outside_tls=True) as stream:
                assert stream.path == "rdma"
                assert stream.extra(TLSAttribute.peer_certificate)
                await check_echo(stream)


async def test_both_ends_must_allow_it(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    async with serving(ssl=server_context) as listener:
        async with await connect(LOCAL, listener.port, ssl=client_context, rdma_outside_tls=True) as stream:
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.peer == Code.TLS_PAYLOAD_POLICY
            assert stream.extra(TLSAttribute.ssl_object).version()
            await check_echo(stream)
        with pytest.raises(NegotiationError, match="TLS"):
            await connect(LOCAL, listener.port, ssl=client_context, mode="rdma")


@in_virtual_time
async def test_plain_tls_client_is_served_inside_tls(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    config = Config(negotiate_timeout_ms=100)
    async with serving(ssl=server_context, rdma_outside_tls=True, config=config) as listener:
        async with await anyio.connect_tcp(
            LOCAL, listener.port, ssl_context=client_context, tls_hostname=LOCAL
        ) as client:
            for text in (b"\xe2\xd4", b"hello", b"x" * 100_000):
                await client.send(text)
                got = b""
                with anyio.fail_after(10):
                    while len(got) < len(text):
                        got += await client.receive()
                assert got == text


async def test_silent_tls_client_and_a_late_proposal(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    proposal = Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16), gid=bytes(16)).encode()
    async with serving(ssl=server_context, config=Config(server_first_wait_ms=1)) as listener:
        async with await anyio.connect_tcp(
            LOCAL, listener.port, ssl_context=client_context, tls_hostname=LOCAL
        ) as client:
            await until(lambda: listener.statistics().tcp == 1)
            await client.send(proposal)
            assert (await client.receive())[:5] == b"\xe2\xd4\xc3\xd9\x04"
            await client.send(b"hello")
            assert await client.receive() == b"hello"


async def test_plain_tls_server(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    async def tls_echo(stream: SocketStream) -> None:
        with contextlib.suppress(ssl.SSLError):
            async with await TLSStream.wrap(
                stream, server_side=True, ssl_context=server_context, standard_compatible=False
            ) as tls:
                async for part in tls:
                    await tls.send(part)

    async with plain_server(tls_echo) as port:
        for _ in range(2):
            async with await connect(LOCAL, port, ssl=client_context, rdma_outside_tls=True) as stream:
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.code == Code.PLAIN_TCP_PEER
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
    assert engine.proposals == 1


async def test_never_clear_text(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    """No fallback leaves TLS, on either side."""
    async with plain_server(echo_plain) as port:
        with pytest.raises(ssl.SSLError):
            await connect(LOCAL, port, ssl=client_context, rdma_outside_tls=True)
    # A Proposal looks to a TLS server like the beginning of a very old kind of TLS.
    config = Config(negotiate_timeout_ms=100)
    async with serving(ssl=server_context, rdma_outside_tls=True, config=config) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    assert b"HTTP" not in await client.receive()
        with contextlib.suppress(OSError):
            async with await connect(LOCAL, listener.port, config=Config(head_start_ms=1)) as stream:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        await until(lambda: listener.statistics().failed >= 2)
        assert listener.statistics().tcp == listener.statistics().rdma == 0


async def test_peers_must_be_who_they_say(engine: Engine, server_context: ssl.SSLContext) -> None:
    async with serving(ssl=server_context) as listener:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(LOCAL, listener.port, ssl=True)
        stranger = ssl.create_default_context()
        CA.configure_trust(stranger)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(LOCAL, listener.port, ssl=stranger, server_hostname="other.example")
        async with await connect(
            LOCAL, listener.port, ssl=stranger, server_hostname="server.example"
        ) as stream:
            await check_echo(stream)


async def test_clients_can_be_made_to_show_a_certificate(
    engine: Engine, client_context: ssl.SSLContext
) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(LOCAL).configure_cert(server)
    CA.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    names = []

    async def handler(stream: RdmaStream) -> None:
        certificate = stream.extra(TLSAttribute.peer_certificate)
        assert certificate is not None
        names.append(dict(certificate)["subjectAltName"])
        await echo(stream)

    async with serving(handler, ssl=server, rdma_outside_tls=True) as listener:
        known = ssl.create_default_context()
        CA.configure_trust(known)
        CA.issue_cert("client.example").configure_cert(known)
        async with await connect(LOCAL, listener.port, ssl=known, rdma_outside_tls=True) as stream:
            assert stream.path == "rdma"
            await check_echo(stream)
        with pytest.raises((OSError, anyio.BrokenResourceError, anyio.EndOfStream)):
            # With TLS 1.3 the client learns of the refusal when it reads.
            async with await connect(LOCAL, listener.port, ssl=client_context) as stream:
                await stream.receive()
        await until(lambda: listener.statistics().failed == 1)
    assert names == [(("DNS", "client.example"),)]


async def test_much_data_both_ways_and_backpressure(
    engine: Engine, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    client, server = contexts
    data = Random(1).randbytes(3_000_000)
    streams: list[RdmaStream] = []
    done = anyio.Event()

    async def handler(stream: RdmaStream) -> None:
        streams.append(stream)
        await done.wait()

    async def write(stream: RdmaStream) -> None:
        await stream.send(data[:1])
        await stream.send(data[1:])
        await stream.send_eof()

    async def read(stream: RdmaStream) -> None:
        got = bytearray()
        buffer = bytearray(10_000)
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                if len(got) % 3:
                    got += await stream.receive(7777)
                else:
                    got += buffer[: await stream.receive_into(buffer)]
        assert bytes(got) == data

    async with serving(handler, ssl=server) as listener:
        stream = await connect(LOCAL, listener.port, ssl=client)
        await stream.send(data[:1])
        await until(lambda: bool(streams))
        assert await streams[0].receive() == data[:1]
        async with anyio.create_task_group() as tasks:
            for one in (stream, streams[0]):
                tasks.start_soon(write, one)
                tasks.start_soon(read, one)
        # A reader that does not read stops the writer; what was cancelled does not disturb what follows.
        await stream.aclose()
        await streams[0].aclose()
        done.set()


async def test_cancelled_send_and_close_deliver_what_was_sent(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    data = Random(2).randbytes(20_000_000)
    got = bytearray()
    ended = anyio.Event()
    begin = anyio.Event()

    async def handler(stream: RdmaStream) -> None:
        async with stream:
            await begin.wait()
            async for part in stream:
                got.extend(part)
            ended.set()

    async with serving(handler, ssl=server_context) as listener:
        async with await connect(LOCAL, listener.port, ssl=client_context) as stream:
            with anyio.move_on_after(0.1) as scope:
                await stream.send(data)
            assert scope.cancelled_caught
            begin.set()
            await stream.send(b"END")
        with anyio.fail_after(10):
            await ended.wait()
    assert got.endswith(b"END")
    assert data.startswith(got[:-3])


async def test_cut_off_connection_is_no_clean_end(
    engine: Engine, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    """Without TLS's own end somebody may have cut the stream short."""

    async def handler(stream: RdmaStream) -> None:
        await stream.send(b"half a mess")
        stream._pipe._sock.sock.shutdown(2)  # type: ignore[attr-defined]
        await anyio.aclose_forcefully(stream)

    async with serving(handler, ssl=server_context, config=Config(server_first_wait_ms=0)) as listener:
        async with await connect(LOCAL, listener.port, ssl=client_context) as stream:
            assert await stream.receive() == b"half a mess"
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()


async def test_what_was_sent_before_the_peer_went_away_is_received(
    client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    """TLS may want to answer what it reads, as an end without its own one, when nobody is there any more."""
    with tcp_pair() as (client_sock, server_sock):
        client_sock.setblocking(False)
        client = TlsLayer(client_sock, client_context, server_hostname=LOCAL)
        server = TlsLayer(server_sock, server_context, server_side=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.handshake, 10)
            tasks.start_soon(server.handshake, 10)
        server.send(b"half a mess")
        client_sock.shutdown(socket.SHUT_WR)  # whatever it sends now fails
        client._outgoing.write(b"an answer")
        assert client.recv(100) == b"half a mess"
        with pytest.raises(BrokenPipeError):
            client.send(b"data")


async def test_handshake_that_never_ends(engine: Engine, server_context: ssl.SSLContext) -> None:
    async with serving(ssl=server_context, config=Config(negotiate_timeout_ms=30)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(5):
                await client.receive()
        await until(lambda: listener.statistics().failed == 1)
