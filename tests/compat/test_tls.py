"""`ssl=` on the asyncio functions: negotiated inside TLS where both ends allow payload outside; start_tls."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from functools import partial
from typing import Any, NamedTuple

import anyio
import pytest

from aiordma.compat.connection import create_connection, create_server, open_connection, start_server
from aiordma.compat.tls import TlsTransport
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from tests.private import needs, skip_without
from tests.processes import FULL_PATIENCE, PATIENCE
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

from .recorder import Recorder

pytestmark = pytest.mark.anyio
SOFT = Config(device=DEVICE)
BIG = bytes(range(256)) * 8000

# What client and server allow -> the path, and the reason at each end (None: RDMA).
POLICIES = {
    "both": (True, True, "rdma", None, None),
    "client": (True, False, "tcp", Code.TLS_PAYLOAD_POLICY, Code.TLS_PAYLOAD_POLICY),
    "server": (False, True, "tcp", Code.TLS_PAYLOAD_POLICY, Code.PEER_NO_SMC),
    "none": (False, False, "tcp", Code.TLS_PAYLOAD_POLICY, Code.TLS_PAYLOAD_POLICY),
}


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> tuple[bool, bool, str, Code | None, Code | None]:
    return POLICIES[request.param]


def port_of(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def check_tls(get: Any, path: str, reason: Code | None, *, server: bool) -> None:
    assert get("aiordma.path") == path
    assert getattr(get("aiordma.fallback_reason"), "code", None) == reason
    assert (get("aiordma.stream") is not None) == (path == "rdma")
    assert get("ssl_object").version() == "TLSv1.3"
    assert get("cipher")[1] == "TLSv1.3"
    assert get("peername")[0] == LOCAL
    assert get("sslcontext") is tls_contexts()[server]
    if not server:
        assert ("IP Address", LOCAL) in get("peercert")["subjectAltName"]


@pytest.mark.parametrize("tls", [True, False])
async def test_a_server_shows_its_context_as_asyncios_do(tls: bool) -> None:
    """Test-suites of other programs ask for it."""
    context = tls_contexts()[1] if tls else None
    server: Any = await create_server(Recorder, LOCAL, 0, ssl=context, config=SOFT, rdma_outside_tls=True)
    try:
        assert server._ssl_context is context
    finally:
        server.close()
        await server.wait_closed()


async def test_streams(policy: Any) -> None:
    """Either end may forbid it: both agree, the peer is authenticated, the data is right on either path."""
    client_allows, server_allows, path, client_reason, server_reason = policy
    client_context, server_context = tls_contexts()
    seen: list[Any] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        check_tls(writer.get_extra_info, path, server_reason, server=True)
        seen.append(writer)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await start_server(
        echo, LOCAL, 0, ssl=server_context, rdma_outside_tls=server_allows, config=SOFT
    )
    async with server:
        for _ in range(2):
            reader, writer = await open_connection(
                LOCAL, port_of(server), ssl=client_context, rdma_outside_tls=client_allows, config=SOFT
            )
            check_tls(writer.get_extra_info, path, client_reason, server=False)

            async def send(writer: asyncio.StreamWriter = writer) -> None:
                writer.write(BIG)
                await writer.drain()

            sending = asyncio.ensure_future(send())
            assert await reader.readexactly(len(BIG)) == BIG
            await sending
            assert writer.can_write_eof() == (path == "rdma")
            if path == "tcp":
                with pytest.raises(NotImplementedError):
                    writer.write_eof()
            writer.close()
            await writer.wait_closed()
    assert len(seen) == 2


@pytest.mark.parametrize("buffered", [False, True], ids=["protocol", "buffered"])
async def test_protocols(policy: Any, buffered: bool) -> None:
    client_allows, server_allows, path, client_reason, server_reason = policy
    client_context, server_context = tls_contexts()

    class Echo(asyncio.Protocol):
        transport: Any

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            check_tls(transport.get_extra_info, path, server_reason, server=True)

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.got, self.lost = bytearray(), asyncio.get_running_loop().create_future()
            self._buffer = memoryview(bytearray(1000))  # asyncio's TLS slices it, and means no copy

        def get_buffer(self, hint: int) -> memoryview:
            return self._buffer

        def buffer_updated(self, count: int) -> None:
            self.got += self._buffer[:count]

        def connection_lost(self, exc: BaseException | None) -> None:
            self.lost.set_result(exc)

    server = await create_server(
        Echo, LOCAL, 0, ssl=server_context, rdma_outside_tls=server_allows, config=SOFT
    )
    transport, protocol = await create_connection(
        Buffered if buffered else Recorder,
        LOCAL,
        port_of(server),
        ssl=client_context,
        rdma_outside_tls=client_allows,
        config=SOFT,
    )
    check_tls(transport.get_extra_info, path, client_reason, server=False)
    transport.write(BIG)
    got: Any = protocol
    async with asyncio.timeout(FULL_PATIENCE):  # the recorder has no event to wait for
        while len(got.got if buffered else got.data) < len(BIG):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (got.got if buffered else got.data) == BIG
    transport.close()
    await got.lost
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("pulls", [True, False], ids=["pulling", "asyncio's"])
async def test_a_reply_after_the_clients_end_arrives_where_the_payload_is_outside_tls(
    pulls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's streams close a connection inside TLS as soon as its peer ends; this one can write an end."""
    if not pulls:
        monkeypatch.setattr("aiordma.compat.streams._AS_EXPECTED", False)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        await asyncio.sleep(0)
        writer.write(data)
        await writer.drain()
        writer.close()

    client, context = tls_contexts()
    server: Any = await start_server(serve, LOCAL, 0, ssl=context, config=SOFT, rdma_outside_tls=True)
    reader, writer = await open_connection(
        LOCAL, port_of(server), ssl=client, config=SOFT, rdma_outside_tls=True
    )
    assert writer.get_extra_info("aiordma.path") == "rdma"
    assert writer.can_write_eof()
    writer.write(BIG)
    writer.write_eof()
    assert await reader.read() == BIG
    writer.close()
    server.close()
    await server.wait_closed()


async def test_without_rdma_the_payload_stays_in_tls() -> None:
    """Both allow it without a device: our own transport, inside the TLS session of the negotiation."""
    client_context, server_context = tls_contexts()
    none = Config(device="none")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(writer.transport, TlsTransport)
        writer.write(await reader.readexactly(len(BIG)))
        await writer.drain()
        writer.close()

    async with await start_server(
        echo, LOCAL, 0, ssl=server_context, rdma_outside_tls=True, config=none
    ) as server:
        reader, writer = await open_connection(
            LOCAL, port_of(server), ssl=client_context, rdma_outside_tls=True, config=none
        )
        assert writer.get_extra_info("aiordma.fallback_reason").code == Code.DISABLED
        assert isinstance(writer.transport, TlsTransport)
        writer.write(BIG)
        assert await reader.read() == BIG
        writer.close()
        await writer.wait_closed()
        with pytest.raises(NegotiationError, match="device none"):
            await open_connection(
                LOCAL, port_of(server), ssl=client_context, rdma_outside_tls=True, config=none, mode="rdma"
            )


@needs("_sendfile_compatible")
@pytest.mark.parametrize("device", [DEVICE, "none"])
async def test_a_file_is_sent_from_where_it_stands(device: str, anyio_backend: Any) -> None:
    """As asyncio does inside TLS, in both roles, wherever the payload of the connection travels."""
    if anyio_backend[1]["use_uvloop"]:
        pytest.skip("uvloop's sendfile() takes only its own transports")
    options = {"rdma_outside_tls": True, "config": Config(device=device)}
    found = await files_inside_tls(start_server, open_connection, **options)
    assert found.paths == {"rdma" if device == DEVICE else "tcp"}
    plain = await files_inside_tls(asyncio.start_server, asyncio.open_connection)
    # Since Python 3.15 it is sent from the offset, also where that is 0.
    assert plain.sent in (Sent([6, 3], b"456789234."), Sent([10, 3], b"0123456789234."))
    assert found.sent == plain.sent


class Sent(NamedTuple):
    counts: list[int]
    arrived: bytes


class Files(NamedTuple):
    """Of both roles, which must be alike."""

    sent: Sent
    paths: set[Any]


async def files_inside_tls(serve_by: Any, open_by: Any, **options: Any) -> Files:
    """What is counted and what arrives of a file that stands at its fourth byte."""
    loop = asyncio.get_running_loop()
    client, server = tls_contexts()
    accepted: asyncio.Future[Any] = loop.create_future()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[int]:
        with tempfile.TemporaryFile() as file:
            file.write(b"0123456789")
            file.seek(4)
            counts = [
                await loop.sendfile(writer.transport, file),
                await loop.sendfile(writer.transport, file, 2, 3),
            ]
        writer.write(b".")
        return counts

    async with await serve_by(
        lambda *pair: accepted.set_result(pair), LOCAL, 0, ssl=server, **options
    ) as made:
        pairs = [await open_by(LOCAL, port_of(made), ssl=client, **options), await accepted]
        counts = [await send(*pair) for pair in pairs]
        arrived = [await reader.readuntil(b".") for reader, _ in reversed(pairs)]
        paths = {writer.get_extra_info("aiordma.path") for _, writer in pairs}
        for _, writer in pairs:
            writer.close()
            await writer.wait_closed()
    assert counts[0] == counts[1]
    assert arrived[0] == arrived[1]
    return Files(Sent(counts[0], arrived[0]), paths)


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_server_that_nobody_trusts(allowed: bool) -> None:
    """The error is asyncio's, and the server continues."""
    client_context, server_context = tls_contexts()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    async with await start_server(
        echo, LOCAL, 0, ssl=server_context, rdma_outside_tls=allowed, config=SOFT
    ) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await open_connection(LOCAL, port_of(server), ssl=True, rdma_outside_tls=allowed, config=SOFT)
        with pytest.raises(ssl.SSLCertVerificationError):
            await open_connection(
                LOCAL,
                port_of(server),
                ssl=client_context,
                server_hostname="other.example",
                rdma_outside_tls=allowed,
                config=SOFT,
            )
        reader, writer = await open_connection(
            LOCAL, port_of(server), ssl=client_context, rdma_outside_tls=allowed, config=SOFT
        )
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


async def test_a_handshake_that_never_ends() -> None:
    """`ssl_handshake_timeout` also applies inside the negotiation."""
    client_context, _ = tls_contexts()
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(silent, LOCAL, 0) as server:
        with pytest.raises((TimeoutError, ConnectionError)):
            await open_connection(
                LOCAL,
                port_of(server),
                ssl=client_context,
                ssl_handshake_timeout=0.05,
                rdma_outside_tls=True,
                config=SOFT,
            )
        with anyio.fail_after(PATIENCE):
            await ended.wait()  # it may have to accept the client yet


async def test_plain_asyncio_clients_and_servers_are_served() -> None:
    """Neither uses aiordma: TLS over TCP, and no byte of a negotiation in the stream."""
    client_context, server_context = tls_contexts()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if data := await reader.read(100):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with await start_server(
        echo, LOCAL, 0, ssl=server_context, rdma_outside_tls=True, config=SOFT
    ) as server:
        reader, writer = await asyncio.open_connection(LOCAL, port_of(server), ssl=client_context)
        writer.write(b"from asyncio")
        assert await reader.read() == b"from asyncio"
        writer.close()
        await writer.wait_closed()

    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(100)
        heard.append(data)
        if data == b"to asyncio":
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(plain, LOCAL, 0, ssl=server_context) as server:
        reader, writer = await open_connection(
            LOCAL, port_of(server), ssl=client_context, rdma_outside_tls=True, config=SOFT
        )
        writer.write(b"to asyncio")
        assert await reader.read() == b"to asyncio"
        assert writer.get_extra_info("aiordma.fallback_reason").code == Code.PLAIN_TCP_PEER
        assert writer.get_extra_info("ssl_object") is not None
        writer.close()
        await writer.wait_closed()
    assert heard[-1] == b"to asyncio"


async def test_start_tls_runs_tls_over_the_ring() -> None:
    """TLS inside, RDMA outside."""
    if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        skip_without("_replace_transport")
    client_context, server_context = tls_contexts()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go ahead\n")
        await writer.drain()
        await writer.start_tls(server_context)
        writer.write(await reader.readexactly(len(BIG)))
        await writer.drain()
        writer.close()

    async with await start_server(serve, LOCAL, 0, config=SOFT) as server:
        reader, writer = await open_connection(LOCAL, port_of(server), config=SOFT)
        assert writer.get_extra_info("aiordma.path") == "rdma"
        stream = writer.get_extra_info("aiordma.stream")
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go ahead\n"
        await writer.start_tls(client_context, server_hostname=LOCAL)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert writer.get_extra_info("aiordma.path") == "rdma"
        before = stream.statistics().bytes_sent
        writer.write(BIG)
        assert await reader.readexactly(len(BIG)) == BIG
        assert stream.statistics().bytes_sent - before > len(BIG)
        writer.close()
        await writer.wait_closed()


@needs("_replace_transport")
async def test_a_reader_that_paused_before_its_transport_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Python 3.14 on, start_tls() gives the reader the new transport, whatever the old one's state."""
    paused: list[str] = []

    class Encrypted(asyncio.Transport):
        def pause_reading(self) -> None:
            paused.append("encrypted")

        def write(self, data: object) -> None:
            raise AssertionError

        def is_closing(self) -> bool:
            return True

    async def start_tls(transport: Any, *_: object, **__: object) -> Encrypted:
        transport.pause_reading()  # as feed_data() does with bytes right behind the handshake
        reader._paused = True
        return Encrypted()

    async with await start_server(lambda reader, writer: writer.close(), LOCAL, 0, config=SOFT) as server:
        _, writer = await open_connection(LOCAL, port_of(server), config=SOFT)
        reader: Any = writer._reader  # type: ignore[attr-defined]
        reader._replace_transport = partial(setattr, reader, "_transport")  # as in Python 3.14
        monkeypatch.setattr("aiordma.compat.stream_writer.start_tls", start_tls)
        ring: Any = writer.transport
        await writer.start_tls(ssl.create_default_context())
        assert ring.is_reading()
        assert paused == ["encrypted"]
        monkeypatch.undo()
        ring.abort()
