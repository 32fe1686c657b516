"""The four functions and the server, over a ring and over TCP, on asyncio's loop and on uvloop.

The negotiation is replaced: client and server find each other by the addresses of their TCP connection, and
the ring is one in memory. Everything from the listening socket to the protocol is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.borrowed import ENABLED
from aiordma.compat import connection
from aiordma.compat.connection import create_connection, create_server, open_connection, start_server
from aiordma.compat.fallback import TransportView
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.links import engine as links_engine
from aiordma.negotiation.dialogue import NegotiationResult
from tests.health import settle

from .negotiated import REASON, Negotiation
from .recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.anyio


@pytest.fixture(params=["rdma", "tcp"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def negotiation(path: str, monkeypatch: pytest.MonkeyPatch) -> Negotiation:
    fake = Negotiation(path)
    monkeypatch.setattr(connection, "connect_and_negotiate", fake.client)
    monkeypatch.setattr(connection, "negotiate_accepted", fake.server)
    monkeypatch.setattr(links_engine, "current", fake.current)
    return fake


def address(server: Any) -> tuple[str, int]:
    host, port = server.sockets[0].getsockname()
    return host, port


async def closed(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


def check_info(get: Callable[..., Any], path: str, peer: Any = None) -> None:
    assert get("aiordma.path") == path
    assert get("aiordma.fallback_reason") == (None if path == "rdma" else REASON)
    assert (get("aiordma.stream") is None) == (path == "tcp")
    assert len(get("sockname")) == 2
    assert peer is None or get("peername") == peer
    assert get("socket").family == socket.AF_INET
    assert get("no such thing", "default") == "default"


async def test_streams_end_to_end(path: str) -> None:
    infos: list[Any] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        check_info(writer.get_extra_info, path)
        check_info(writer.transport.get_extra_info, path)
        infos.append(writer.get_extra_info("peername"))
        await echo(reader, writer)

    async with await start_server(handler, "127.0.0.1", 0) as server:
        reader, writer = await open_connection(*address(server))
        assert isinstance(reader, asyncio.StreamReader)
        assert isinstance(writer, asyncio.StreamWriter)
        check_info(writer.get_extra_info, path, address(server))
        check_info(writer.transport.get_extra_info, path, address(server))
        assert writer.transport is writer.transport
        data = bytes(range(256)) * 100
        writer.write(data)
        await writer.drain()
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b""
        assert infos == [writer.get_extra_info("sockname")]
        await closed(writer)


async def test_protocols_end_to_end(path: str) -> None:
    server_side: list[Recorder] = []

    class Echo(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            check_info(transport.get_extra_info, path)
            server_side.append(self)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(data)

    server = await create_server(Echo, "127.0.0.1", 0)
    transport, protocol = await create_connection(Recorder, *address(server))
    assert isinstance(protocol, Recorder)
    assert protocol.transport is transport
    assert protocol.events == ["made"]
    assert isinstance(transport, asyncio.Transport)
    check_info(transport.get_extra_info, path, address(server))
    data = bytes(range(256)) * 1000
    transport.write(data)
    transport.write_eof()
    with anyio.fail_after(20):
        assert await protocol.lost is None
        await server_side[0].lost
    assert protocol.data == data
    assert protocol.events[-2:] == ["eof", "lost"]
    server.close()
    await server.wait_closed()


async def test_transport_methods_on_every_path(path: str, anyio_backend: Any) -> None:
    async with await create_server(Recorder, "127.0.0.1", 0) as server:
        transport, protocol = await create_connection(Recorder, *address(server))
        viewed = anyio_backend[1]["use_uvloop"] or not ENABLED
        assert isinstance(transport, TransportView) == (path == "tcp" and viewed)
        transport.set_write_buffer_limits(high=100)
        assert transport.get_write_buffer_limits() == (25, 100)
        assert transport.get_write_buffer_size() == 0
        assert transport.is_reading()
        transport.pause_reading()
        assert not transport.is_reading()
        transport.resume_reading()
        assert transport.get_protocol() is protocol
        assert transport.can_write_eof()
        transport.writelines([b"a", b"b"])
        assert repr(transport)
        transport.abort()
        assert transport.is_closing()
        assert await protocol.lost is None  # type: ignore[attr-defined]
        await settle()


async def test_settings_reach_the_negotiation(
    path: str, negotiation: Negotiation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(ring_bytes=32768)
    if path == "tcp":
        with pytest.raises(NegotiationError, match="in this test"):
            await start_server(echo, "127.0.0.1", 0, config=config, mode="rdma")
        return
    async with await start_server(echo, "127.0.0.1", 0, config=config, mode="rdma") as server:
        _, writer = await open_connection(*address(server), config=config)
        await closed(writer)
        assert negotiation.seen == [(config, "auto"), (config, "rdma")]
        for name in [name for name in os.environ if name.startswith("AIORDMA_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AIORDMA_MODE", "rdma")
        monkeypatch.setenv("AIORDMA_RING_BYTES", "16384")
        _, writer = await open_connection(*address(server))
        await closed(writer)
        assert negotiation.seen[2] == (Config(ring_bytes=16384, mode="rdma"), "rdma")


async def test_mode_tcp_asks_nobody(negotiation: Negotiation) -> None:
    async with await start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await open_connection(*address(server), mode="tcp")
        transport, protocol = await create_connection(Recorder, *address(server), mode="tcp")
        for get in (writer.get_extra_info, transport.get_extra_info):
            assert get("aiordma.path") == "tcp"
            assert get("aiordma.fallback_reason").code == Code.DISABLED
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        transport.close()
        await protocol.lost  # type: ignore[attr-defined]
        await closed(writer)
        assert [mode for _, mode in negotiation.seen] == ["auto", "auto"]  # the server's


async def test_what_only_tcp_can_do_stays_on_tcp_and_says_why() -> None:
    async with await start_server(echo, "127.0.0.1", 0) as server:
        own, other = socket.socketpair()
        with other:
            _, writer = await open_connection(sock=own)
            reason = writer.get_extra_info("aiordma.fallback_reason")
            assert reason.code == Code.CONFIGURATION
            assert "sock: it is no TCP socket" in reason.text
            await closed(writer)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            local = unused.getsockname()
        _, writer = await open_connection(*address(server), local_addr=local)
        assert writer.get_extra_info("sockname") == local
        assert "local_addr" in writer.get_extra_info("aiordma.fallback_reason").text
        await closed(writer)
        with pytest.raises(NegotiationError, match="local_addr"):
            await open_connection(*address(server), local_addr=local, mode="rdma")


async def test_options_of_any_path(path: str) -> None:
    async with await start_server(echo, "127.0.0.1", 0) as server:
        _, port = address(server)
        _, writer = await open_connection(
            "localhost",
            port,
            family=socket.AF_INET,
            local_addr=("127.0.0.2", 0),
            happy_eyeballs_delay=0.25,
            flags=0,
        )
        assert writer.get_extra_info("aiordma.path") == path
        assert writer.get_extra_info("sockname")[0] == "127.0.0.2"
        await closed(writer)


async def test_ssl_is_tls_over_tcp_and_never_silently_less(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_context, client_context = tls
    async with await start_server(echo, "127.0.0.1", 0, ssl=server_context) as server:
        for connect in range(2):
            if connect:
                transport, protocol = await create_connection(
                    Recorder, *address(server), ssl=client_context, server_hostname="localhost"
                )
                get = transport.get_extra_info
                transport.close()
                await protocol.lost  # type: ignore[attr-defined]
            else:
                reader, writer = await open_connection(
                    *address(server), ssl=client_context, server_hostname="localhost"
                )
                writer.write(b"secret")
                assert await reader.readexactly(6) == b"secret"
                get = writer.get_extra_info
                await closed(writer)
            assert get("aiordma.path") == "tcp"
            assert get("aiordma.fallback_reason").code == Code.TLS_PAYLOAD_POLICY
            assert get("ssl_object") is not None
        with pytest.raises(NegotiationError, match="TLS"):
            await open_connection(*address(server), ssl=client_context, mode="rdma")
        with pytest.raises(NegotiationError, match="TLS"):
            await start_server(echo, "127.0.0.1", 0, ssl=server_context, mode="rdma")
    await settle()


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost -days 2 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key)
    client.load_verify_locations(certificate)
    return server, client


async def test_a_refused_connection_is_an_oserror() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await open_connection("127.0.0.1", unused.getsockname()[1])
        with pytest.raises(ConnectionRefusedError):
            await create_connection(Recorder, "127.0.0.1", unused.getsockname()[1])


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_failing_factories_leave_nothing_open(reported: list[dict[str, Any]]) -> None:
    def factory() -> asyncio.Protocol:
        raise ValueError("factory")

    async with await create_server(factory, "127.0.0.1", 0) as server:
        with pytest.raises(ValueError, match="factory"):
            await create_connection(factory, *address(server))
        reader, writer = await open_connection(*address(server))
        with anyio.fail_after(20):
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
            while len(reported) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        try:
            await closed(writer)
        except ConnectionError:
            pass
    assert {str(context["exception"]) for context in reported} == {"factory"}


async def test_cancelled_while_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **kwargs: Any) -> NegotiationResult:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(connection, "connect_and_negotiate", never)
    for connect in (open_connection("127.0.0.1", 1), create_connection(Recorder, "127.0.0.1", 1)):
        task: asyncio.Task[Any] = asyncio.ensure_future(connect)
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelled_while_the_transport_starts(path: str, negotiation: Negotiation) -> None:
    """Cancel at every iteration of the loop: either it is connected or nothing leaks."""
    async with await start_server(echo, "127.0.0.1", 0) as server:
        turns, connected = 0, False
        while not connected:
            task = asyncio.ensure_future(open_connection(*address(server)))
            await settle(turns)
            turns += 1
            connected = task.done()
            task.cancel()
            try:
                _, writer = await task
            except asyncio.CancelledError:
                pass
            else:
                await closed(writer)

    def left() -> list[str]:
        tasks = map(repr, asyncio.all_tasks())
        return [
            task
            for task in tasks
            if "test_cancelled" not in task and ("echo" in task or "RdmaServer" in task)
        ]

    with anyio.fail_after(20):
        while left():  # noqa: ASYNC110
            await asyncio.sleep(0)
    gc.collect()


# ---- the server ---------------------------------------------------------------------------------------


async def test_server_interface() -> None:
    server = await start_server(echo, "127.0.0.1", 0, start_serving=False)
    assert isinstance(server, asyncio.AbstractServer)
    assert server.get_loop() is asyncio.get_running_loop()
    assert not server.is_serving()
    (sock,) = server.sockets  # type: ignore[attr-defined]
    listening = sock.getsockname()
    with pytest.raises(ConnectionRefusedError):
        await open_connection(*listening)
    await server.start_serving()
    await server.start_serving()
    assert server.is_serving()
    _, writer = await open_connection(*listening)
    await closed(writer)
    server.close()
    server.close()
    assert not server.is_serving()
    assert server.sockets == ()  # type: ignore[attr-defined]
    await server.wait_closed()
    with pytest.raises(RuntimeError, match="is closed"):
        await server.start_serving()
    with pytest.raises(RuntimeError, match="is closed"):
        await server.serve_forever()
    with pytest.raises(ConnectionRefusedError):
        await open_connection(*listening)
    await settle()


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_serve_forever(how: str) -> None:
    server = await start_server(echo, "127.0.0.1", 0, start_serving=False)
    task = asyncio.ensure_future(server.serve_forever())
    await settle()
    assert server.is_serving()
    with pytest.raises(RuntimeError, match="already being awaited"):
        await server.serve_forever()
    if how == "cancel":
        task.cancel()
    else:
        server.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.is_serving()
    await server.wait_closed()


async def test_closing_the_server_leaves_its_connections(path: str) -> None:
    server: Any = await start_server(echo, "127.0.0.1", 0)
    reader, writer = await open_connection(*address(server))
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"
    server.close()
    waiting = asyncio.ensure_future(server.wait_closed())
    await settle()
    waits = sys.version_info >= (3, 12) and isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    assert waiting.done() is not waits
    writer.write(b"after")
    assert await reader.readexactly(5) == b"after"
    await closed(writer)
    with anyio.fail_after(20):
        await waiting
    await settle()


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
async def test_ending_all_clients(how: str) -> None:
    server: Any = await start_server(echo, "127.0.0.1", 0)
    streams = [await open_connection(*address(server)) for _ in range(3)]
    for reader, writer in streams:
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
    getattr(server, how)()
    with anyio.fail_after(20):
        for reader, writer in streams:
            assert await reader.read() == b""
            await closed(writer)
    server.close()
    await server.wait_closed()


async def test_a_connection_that_is_negotiated_while_the_server_closes(negotiation: Negotiation) -> None:
    negotiation.hold = asyncio.Event()
    server = await start_server(echo, "127.0.0.1", 0)
    reader, writer = await open_connection(*address(server))
    while not negotiation.accepted:  # noqa: ASYNC110
        await asyncio.sleep(0)
    server.close()
    negotiation.hold.set()
    writer.write(b"still served")
    with anyio.fail_after(20):
        assert await reader.readexactly(12) == b"still served"
    await closed(writer)
    await settle()


async def test_failed_negotiations_harm_nobody_else(
    monkeypatch: pytest.MonkeyPatch, negotiation: Negotiation, reported: list[dict[str, Any]]
) -> None:
    async def fail_once(sock: socket.socket, *_: object, **__: object) -> NegotiationResult:
        monkeypatch.setattr(connection, "negotiate_accepted", negotiation.server)
        sock.close()
        raise NegotiationError(Code.PROTOCOL_VIOLATION)

    monkeypatch.setattr(connection, "negotiate_accepted", fail_once)
    async with await start_server(echo, "127.0.0.1", 0) as server:
        with socket.socket() as hostile:
            hostile.setblocking(False)
            await asyncio.get_running_loop().sock_connect(hostile, address(server))
            assert await asyncio.get_running_loop().sock_recv(hostile, 1) == b""
        reader, writer = await open_connection(*address(server))
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await closed(writer)
    assert reported == []


async def test_accept_pauses_when_descriptors_run_out(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiordma.wake.accepting.PAUSE_S", 0.0)
    server: Any = await start_server(echo, "127.0.0.1", 0)
    real = server._sockets[0]

    class Exhausted:
        calls = 0

        def accept(self) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise OSError(errno.EMFILE, "too many open files")
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    stand_in = Exhausted()
    server._acceptor._stop()
    server._acceptor._sockets[:] = [stand_in]
    server._acceptor.resume()
    reader, writer = await open_connection(*address(server))
    writer.write(b"x")
    with anyio.fail_after(20):
        assert await reader.readexactly(1) == b"x"
    assert [context["message"] for context in reported] == ["socket.accept() out of system resource"]
    await closed(writer)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("start", [create_server, start_server])
async def test_the_kernel_keeps_more_clients_than_a_plain_server_would_need(start: Any) -> None:
    """They come faster than they can be negotiated with; a client that finds no place tries again a second
    later, then after two, and four."""
    most = int(await anyio.Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))
    for backlog, expected in ((0, 0), (20, 160), ((1 << 31) - 1, most)):
        server = await start(asyncio.Protocol, "127.0.0.1", 0, backlog=backlog)
        # Of a socket that listens: the length of the queue, and its limit.
        info = server.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert int.from_bytes(info[28:32], sys.byteorder) == min(expected, most)
        server.close()


async def test_addresses_to_listen_on() -> None:
    server: Any
    for host in ("localhost", ["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], "", None):
        server = await start_server(echo, host, 0, family=socket.AF_INET)
        assert len(server.sockets) == (2 if host == ["127.0.0.1", "127.0.0.2"] else 1)
        server.close()
    own = socket.socket()
    own.bind(("127.0.0.1", 0))
    server = await start_server(echo, sock=own, reuse_port=None, backlog=5)
    _, writer = await open_connection(*own.getsockname())
    await closed(writer)
    with pytest.raises(OSError, match="while attempting to bind") as caught:
        await start_server(echo, *own.getsockname(), reuse_address=False)
    assert caught.value.errno == errno.EADDRINUSE
    server.close()
    with pytest.raises(ValueError, match="Neither"):
        await start_server(echo)
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        with pytest.raises(ValueError, match="same time"):
            await start_server(echo, "127.0.0.1", 0, sock=stream)
        with pytest.raises(ValueError, match="Stream Socket"):
            await start_server(echo, sock=datagram)
    with pytest.raises(TypeError):
        await start_server(echo, "127.0.0.1", 0, no_such_option=1)
    await settle()
