"""Details of asyncio's contract: the same test on the loop's own functions and on ours."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.negotiation import peer_cache
from aiordma.proto import clc
from tests.private import skip_without
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

from .recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
SOFT = Config(device=DEVICE)


class Loops:
    """The functions of the event loop."""

    path: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)


class Ours:
    """The same functions of aiordma."""

    path = "rdma"

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        return await aiordma.start_tls(*args, **options)

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            return await getattr(aiordma, name)(*args, config=SOFT, **options)

        return call


@pytest.fixture(params=[Loops, Ours], ids=["plain", "aiordma"])
def api(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(autouse=True)
def _no_memory_of_peers() -> Iterator[None]:
    peer_cache.forget()
    yield
    peer_cache.forget()


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def connected(address: Any) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


async def say(transport: Any, protocol: Any, data: bytes) -> None:
    before = len(protocol.data)
    transport.write(data)
    with anyio.fail_after(20):
        while len(protocol.data) < before + len(data):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert protocol.data[before:] == data


async def end(transport: Any, protocol: Any) -> None:
    transport.close()
    with anyio.fail_after(20):
        await protocol.lost


async def test_serve_forever_that_is_cancelled_in_its_first_step_closes(api: Any) -> None:
    server = await api.create_server(Echo, LOCAL, 0)
    forever = asyncio.ensure_future(server.serve_forever())
    asyncio.get_running_loop().call_soon(forever.cancel)
    with pytest.raises(asyncio.CancelledError):
        await forever
    assert not server.is_serving()
    assert not server.sockets


async def test_the_port_may_be_a_text(api: Any) -> None:
    server = await api.create_server(Echo, LOCAL, "0")
    transport, protocol = await api.create_connection(Recorder, LOCAL, str(port_of(server)))
    await say(transport, protocol, b"x")
    assert transport.get_extra_info("peername") == (LOCAL, port_of(server))
    await end(transport, protocol)
    server.close()


def port_of(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@pytest.mark.parametrize(
    "options",
    [
        {"server_hostname": "localhost"},
        {"ssl_handshake_timeout": 1.0},
        {"ssl_shutdown_timeout": 1.0},
        {"host": None, "port": None},
        {"host": None, "port": None, "ssl": True, "sock": "new"},
        {"sock": "new"},
        {"host": None, "port": None, "sock": "datagram"},
    ],
)
async def test_arguments_of_clients_that_do_not_fit(api: Any, options: dict[str, Any]) -> None:
    given = {"host": LOCAL, "port": 1, **options}
    with socket.socket(
        type=socket.SOCK_DGRAM if given.get("sock") == "datagram" else socket.SOCK_STREAM
    ) as sock:
        if "sock" in given:
            given["sock"] = sock
        with pytest.raises(ValueError, match=r"only meaningful|specified|expected|must set"):
            await api.create_connection(Recorder, given.pop("host"), given.pop("port"), **given)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ssl": True}, TypeError),
        ({"ssl_handshake_timeout": 1.0}, ValueError),
        ({"ssl_shutdown_timeout": 1.0}, ValueError),
    ],
)
async def test_arguments_of_servers_that_do_not_fit(api: Any, options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        await api.create_server(Echo, LOCAL, 0, **options)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises((TypeError, ValueError)):
        await api.connect_accepted_socket(Echo, ours, **options)


async def test_a_plain_server_that_resets_at_once(api: Any) -> None:
    """The connection is made and then lost; or it fails, with an error of the connection."""
    with socket.socket() as listener:
        listener.bind((LOCAL, 0))
        listener.listen()
        listener.setblocking(False)

        async def reset() -> None:
            while True:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()

        server = asyncio.ensure_future(reset())
        for _ in range(5):
            peer_cache.forget()
            with contextlib.suppress(ConnectionError):
                transport, protocol = await api.create_connection(Recorder, *listener.getsockname())
                with anyio.fail_after(20):
                    await protocol.lost
                transport.close()
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


async def test_methods_of_a_transport_can_be_replaced(api: Any, anyio_backend: Any) -> None:
    if anyio_backend[1]["use_uvloop"] and api.path is None:
        pytest.skip("uvloop's own transports do not allow it")
    server = await api.create_server(Echo, LOCAL, 0)
    transport, protocol = await api.create_connection(Recorder, LOCAL, port_of(server))
    written: list[bytes] = []
    transport.write = written.append
    transport.write(b"kept")
    assert written == [b"kept"]
    await end(transport, protocol)
    server.close()


async def test_the_descriptor_of_a_transport_is_refused(api: Any, anyio_backend: Any) -> None:
    if anyio_backend[1]["use_uvloop"] and api.path is not None:
        pytest.skip("uvloop knows its own transports only: aiordma.install() helps, see tests/launch")
    if api.path == "rdma":
        skip_without("_transports")
    loop = asyncio.get_running_loop()
    server = await api.create_server(Echo, LOCAL, 0)
    transport, protocol = await api.create_connection(Recorder, LOCAL, port_of(server))
    descriptor = transport.get_extra_info("socket").fileno()
    for method in (loop.add_reader, loop.add_writer):
        with pytest.raises(RuntimeError, match="is used by transport"):
            method(descriptor, print)
    await say(transport, protocol, b"still there")
    await end(transport, protocol)
    server.close()


async def test_the_socket_after_abort(api: Any) -> None:
    """It is closed after connection_lost(), and not before."""
    seen: list[int] = []

    class Looking(Recorder):
        def connection_lost(self, exc: BaseException | None) -> None:
            seen.append(self.transport.get_extra_info("socket").fileno())
            super().connection_lost(exc)

    server = await api.create_server(Echo, LOCAL, 0)
    for options in ({}, {"sock": await connected((LOCAL, port_of(server)))}):
        where = () if options else (LOCAL, port_of(server))
        transport, protocol = await api.create_connection(Looking, *where, **options)
        shown = transport.get_extra_info("socket")
        descriptor = shown.fileno()
        transport.abort()
        assert transport.get_extra_info("socket").fileno() == shown.fileno() == descriptor
        with anyio.fail_after(20):
            await protocol.lost
            assert seen.pop() == descriptor
            while shown.fileno() != -1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    server.close()


# ---- sockets that the program brings ----------------------------------------------------------------------


async def test_a_client_on_its_own_socket(api: Any) -> None:
    server = await api.create_server(Echo, LOCAL, 0)
    sock = await connected((LOCAL, port_of(server)))
    transport, protocol = await api.create_connection(Recorder, sock=sock)
    assert transport.get_extra_info("aiordma.path") == api.path
    assert transport.get_extra_info("sockname") == sock.getsockname()
    assert transport.get_extra_info("socket").fileno() == sock.fileno()
    await say(transport, protocol, b"data" * 10_000)
    await end(transport, protocol)
    assert sock.fileno() == -1
    server.close()


async def test_a_blocking_socket_of_the_program(api: Any) -> None:
    """It blocks no longer, as with asyncio."""
    server = await api.create_server(Echo, LOCAL, 0)
    sock = await connected((LOCAL, port_of(server)))
    sock.setblocking(True)
    transport, protocol = await api.create_connection(Recorder, sock=sock)
    assert transport.get_extra_info("aiordma.path") == api.path
    await say(transport, protocol, b"hello")
    await end(transport, protocol)
    server.close()


async def test_a_cancelled_connect_closes_the_program_s_socket(api: Any) -> None:
    """As asyncio, for which it is the transport's by then."""
    server = await api.create_server(Echo, LOCAL, 0)
    sock = await connected((LOCAL, port_of(server)))
    task = asyncio.ensure_future(api.create_connection(Recorder, sock=sock))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert sock.fileno() == -1
    server.close()


async def test_a_plain_server_on_the_program_s_socket(api: Any) -> None:
    """Each connection begins with what the program sends: the Proposal was on another one."""
    heads: list[bytes] = []

    class Plain(Echo):
        def data_received(self, data: bytes) -> None:
            heads.append(data)
            if data.startswith(b"hello"):
                self.transport.write(data)
            else:
                self.transport.close()

    loop = asyncio.get_running_loop()
    server: Any = await aiordma.unpatched(loop).create_server(Plain, LOCAL, 0)
    sock = await connected((LOCAL, port_of(server)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    descriptor = sock.fileno()
    transport, protocol = await api.create_connection(Recorder, sock=sock)
    assert sock.fileno() == descriptor
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert transport.get_extra_info("peername") == (LOCAL, port_of(server))
    await say(transport, protocol, b"hello")
    assert heads[-1] == b"hello"
    assert len(heads) == (1 if api.path is None else 2)
    await end(transport, protocol)
    server.close()
    gc.collect()


async def test_a_socket_that_has_carried_data_is_left_alone(api: Any) -> None:
    """It may be a tunnel through a proxy: whoever is at its end is not who was asked at its beginning."""
    server = await api.create_server(Echo, LOCAL, 0)
    sock = await connected((LOCAL, port_of(server)))
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, b"CONNECT")
    assert await loop.sock_recv(sock, 7) == b"CONNECT"
    transport, protocol = await api.create_connection(Recorder, sock=sock)
    if api.path is not None:
        assert "has carried data before" in transport.get_extra_info("aiordma.fallback_reason").text
    await say(transport, protocol, b"x")
    await end(transport, protocol)
    server.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_accepted_sockets(api: Any, tls: bool) -> None:
    client_context, server_context = tls_contexts()
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind((LOCAL, 0))
        listener.listen()
        listener.setblocking(False)

        async def serve() -> tuple[Any, Any]:
            accepted, _ = await loop.sock_accept(listener)
            result: tuple[Any, Any] = await api.connect_accepted_socket(
                Echo, accepted, ssl=server_context if tls else None
            )
            return result

        serving = asyncio.ensure_future(serve())
        transport, protocol = await api.create_connection(
            Recorder, *listener.getsockname(), ssl=client_context if tls else None
        )
        other, _ = await serving
        if api.path is not None:
            for end_of in (transport, other):
                assert end_of.get_extra_info("aiordma.path") == ("tcp" if tls else "rdma")
        await say(transport, protocol, b"data")
        await end(transport, protocol)


@pytest.mark.parametrize("first", [b"", b"\xe2\xd4\xc3\xd9garbage....", "question", "datagrams"])
async def test_an_accepted_client_that_leaves_is_a_connection_that_ends(api: Any, first: bytes | str) -> None:
    """A server that accepts in a loop, as anyio's, would end with the error of one client."""
    kind = {"question": clc.Kind.QUESTION, "datagrams": clc.Kind.DATAGRAMS}.get(str(first))
    if kind is not None:
        proposal = clc.Proposal(engine_id=b"e" * 16, nonce=b"n" * 16, host_id=bytes(16), kind=kind)
        first = proposal.encode()
    assert isinstance(first, bytes)
    with socket.create_server((LOCAL, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        client.sendall(first)
        client.shutdown(socket.SHUT_WR)
        with anyio.fail_after(20):
            transport, protocol = await api.connect_accepted_socket(Recorder, accepted)
            if api.path is None and first:
                transport.abort()
            await protocol.lost
        assert transport.get_extra_info("peername") == client.getsockname()
        client.close()


# ---- TLS --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_start_tls(api: Any, mode: str) -> None:
    client_context, server_context = tls_contexts()
    options = {} if api.path is None else {"mode": mode}
    upgraded: list[Any] = []

    class Upgrading(Echo):
        def data_received(self, data: bytes) -> None:
            if upgraded:
                self.transport.write(data)
                return
            self.transport.write(b"go on")
            upgraded.append(asyncio.ensure_future(self.upgrade()))

        async def upgrade(self) -> None:
            self.transport = await api.start_tls(self.transport, self, server_context, server_side=True)

    server = await api.create_server(Upgrading, LOCAL, 0)
    transport, protocol = await api.create_connection(Recorder, LOCAL, port_of(server), **options)
    transport.write(b"STARTTLS")
    with anyio.fail_after(20):
        while protocol.data != b"go on":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    inside = await api.start_tls(transport, protocol, client_context, server_hostname=LOCAL)
    await upgraded[0]
    if api.path is not None:
        assert inside.get_extra_info("aiordma.path") == ("rdma" if mode == "auto" else "tcp")
    assert inside.get_extra_info("ssl_object").version() == "TLSv1.3"
    await say(inside, protocol, b"secret" * 1000)
    await end(inside, protocol)
    server.close()


async def test_start_tls_of_stream_writers(api: Any, anyio_backend: Any) -> None:
    if anyio_backend[1]["use_uvloop"] and api.path is not None:
        skip_without("_replace_transport")
    client_context, server_context = tls_contexts()
    module: Any = asyncio if api.path is None else api

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"go on")
        await writer.start_tls(server_context)
        writer.write(await reader.readexactly(6))
        await writer.drain()
        writer.close()

    server = await module.start_server(serve, LOCAL, 0)
    reader, writer = await module.open_connection(LOCAL, port_of(server))
    writer.write(b"STARTTLS")
    assert await reader.readexactly(5) == b"go on"
    await writer.start_tls(client_context, server_hostname=LOCAL)
    assert writer.get_extra_info("aiordma.path") == api.path
    writer.write(b"secret")
    with anyio.fail_after(20):
        assert await reader.readexactly(6) == b"secret"
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    server.close()


async def test_unpatched_methods_are_the_loop_s(api: Any) -> None:
    loop = asyncio.get_running_loop()
    server = await api.create_server(Echo, LOCAL, 0)
    transport, protocol = await aiordma.unpatched(loop).create_connection(Recorder, LOCAL, port_of(server))
    assert transport.get_extra_info("aiordma.path") is None
    await say(transport, protocol, b"x")
    await end(transport, protocol)
    server.close()
