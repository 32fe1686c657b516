"""What a program has set on the socket that it gives as `sock=` holds for its connection, as with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.compat import connection, given_socket
from aiordma.config import Config
from aiordma.errors import Code, FallbackReason
from aiordma.negotiation import peer_cache
from aiordma.negotiation.announcement import arriving
from aiordma.negotiation.dialogue import NegotiationResult
from aiordma.negotiation.server import negotiate_accepted
from tests.health import until
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
#: linux/socket.h: whether the program has set the sizes of the buffers, which the kernel then leaves alone.
SO_BUF_LOCK = 72

IP, IPV6, SOCKET, TCP = socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET, socket.IPPROTO_TCP
OPTIONS: dict[str, tuple[int, int | bytes]] = {
    "SO_SNDBUF": (SOCKET, 50_000),
    "SO_RCVBUF": (SOCKET, 60_000),
    "SO_LINGER": (SOCKET, struct.pack("ii", 1, 7)),
    "SO_KEEPALIVE": (SOCKET, 1),
    "SO_OOBINLINE": (SOCKET, 1),
    "SO_RCVLOWAT": (SOCKET, 3),
    "SO_DONTROUTE": (SOCKET, 1),
    "SO_RCVTIMEO": (SOCKET, struct.pack("ll", 11, 0)),
    "SO_SNDTIMEO": (SOCKET, struct.pack("ll", 12, 0)),
    "SO_REUSEADDR": (SOCKET, 1),
    "SO_MARK": (SOCKET, 5),
    "SO_BINDTODEVICE": (SOCKET, b"lo\0"),
    "IP_TOS": (IP, 0x10),
    "IP_TTL": (IP, 33),
    "IPV6_TCLASS": (IPV6, 0x20),
    "IPV6_UNICAST_HOPS": (IPV6, 34),
    "SO_PRIORITY": (SOCKET, 4),  # after IP_TOS, which sets it as well
    "TCP_NODELAY": (TCP, 0),  # asyncio sets it for every connection
    "TCP_CONGESTION": (TCP, b"reno"),
    "TCP_KEEPIDLE": (TCP, 101),
    "TCP_KEEPINTVL": (TCP, 102),
    "TCP_KEEPCNT": (TCP, 13),
    "TCP_USER_TIMEOUT": (TCP, 9_000),
    "TCP_LINGER2": (TCP, 14),
    "TCP_NOTSENT_LOWAT": (TCP, 20_000),
    "SO_MAX_PACING_RATE": (SOCKET, 500_000_000),
    "SO_ZEROCOPY": (SOCKET, 1),
    "IPV6_MTU_DISCOVER": (IPV6, 2),
    "TCP_THIN_LINEAR_TIMEOUTS": (TCP, 1),
}
#: Of those that Python has no names for.
NUMBERS = {
    "SO_MAX_PACING_RATE": 47,
    "SO_ZEROCOPY": 60,
    "IPV6_MTU_DISCOVER": 23,
    "TCP_THIN_LINEAR_TIMEOUTS": 16,
}


def number(name: str) -> int:
    found: int = NUMBERS.get(name) or getattr(socket, name)
    return found


@pytest.fixture(autouse=True)
def _unknown_peers() -> Iterator[None]:
    peer_cache.forget()
    yield
    peer_cache.forget()


class Echoes(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"hello"):
            self.transport.write(data)
        else:
            self.transport.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


def given(server: Any, *, with_options: bool) -> socket.socket:
    """A new connection of the program's own. What the user may not set, or the kernel lacks, is left."""
    listening = server.sockets[0]
    # asyncio looks at the protocol's number before it sets TCP_NODELAY.
    sock = socket.socket(listening.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    for name, (level, value) in OPTIONS.items() if with_options else ():
        with contextlib.suppress(OSError):
            sock.setsockopt(level, number(name), value)
    sock.connect(listening.getsockname())
    sock.setblocking(False)
    return sock


def options_of(sock: Any) -> dict[str, Any]:
    """The options, and whether the kernel may change the sizes of the buffers; those only if it may not."""
    values: dict[str, Any] = {"SO_BUF_LOCK": None}
    with contextlib.suppress(OSError):
        values["SO_BUF_LOCK"] = sock.getsockopt(SOCKET, SO_BUF_LOCK)
    for name, (level, value) in OPTIONS.items():
        if name.endswith("BUF") and not values["SO_BUF_LOCK"]:
            continue
        with contextlib.suppress(OSError):
            size = () if isinstance(value, int) else (16,)
            values[name] = sock.getsockopt(level, number(name), *size)
    return values


async def asyncios(server: Any, *, with_options: bool, **tls: Any) -> dict[str, Any]:
    """The options of the same connection, made by asyncio."""
    loop: Any = asyncio.get_running_loop()
    sock = given(server, with_options=with_options)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock, **tls)
    try:
        return options_of(transport.get_extra_info("socket"))
    finally:
        transport.abort()


async def ours(server: Any, path: str, *, with_options: bool, **options: Any) -> dict[str, Any]:
    """The options of a connection made by aiordma, which works."""
    sock = given(server, with_options=with_options)
    reader, writer = await connection.open_connection(sock=sock, config=CONFIG, **options)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert writer.get_extra_info("aiordma.path") == path
    found = options_of(writer.get_extra_info("socket"))
    writer.close()
    await writer.wait_closed()
    return found


@pytest.mark.parametrize("with_options", [True, False], ids=["set", "unset"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("peer", ["plain", "aiordma", "aiordma, late"])
async def test_options_of_the_given_socket(
    peer: str, host: str, with_options: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if peer == "aiordma, late":  # a new connection takes the given one's place before anything is said
        monkeypatch.setattr(given_socket, "_LATE_NEAR_S", -1)
    server: Any
    if peer == "plain":
        server = await asyncio.start_server(echo, host, 0)
    else:
        server = await connection.start_server(echo, host, 0, config=CONFIG)
    async with server:
        with anyio.fail_after(30):
            wanted = await asyncios(server, with_options=with_options)
            path = "tcp" if peer == "plain" else "rdma"
            assert await ours(server, path, with_options=with_options) == wanted


async def test_options_of_the_given_socket_under_tls() -> None:
    """The session of TLS stays on the new connection."""
    client, context = tls_contexts()
    server: Any = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    tls = {"ssl": client, "server_hostname": "127.0.0.1"}
    async with server:
        with anyio.fail_after(30):
            wanted = await asyncios(server, with_options=True, **tls)
            assert await ours(server, "tcp", with_options=True, rdma_outside_tls=True, **tls) == wanted


async def test_a_server_that_took_it_for_plain_while_another_client_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection was open and silent meanwhile: a new one, on which it proposes, takes its place."""
    patient = CONFIG.changed(server_first_wait_ms=600_000)
    monkeypatch.setattr(given_socket, "_LATE_NEAR_S", 600)
    clients = []

    async def give_up(sock: socket.socket, *args: Any, **options: Any) -> NegotiationResult:
        clients.append(sock)
        if len(clients) > 1:
            return await negotiate_accepted(sock, *args, **options)
        reason = FallbackReason.of_local(Code.PEER_NO_SMC)
        return NegotiationResult(None, sock, reason, sock.getsockname(), sock.getpeername(), silent=True)

    monkeypatch.setattr(connection, "negotiate_accepted", give_up)
    server: Any = await connection.start_server(echo, LOCAL, 0, config=patient)
    async with server:
        sock = given(server, with_options=False)
        address = sock.getsockname()
        key = (*server.sockets[0].getsockname(), False)
        with anyio.fail_after(30):
            async with peer_cache.ask_alone(key):
                opening = asyncio.ensure_future(connection.open_connection(sock=sock, config=CONFIG))
                await until(lambda: clients and any(peer_cache._asking.values()))
                monkeypatch.setattr(given_socket, "_LATE_NEAR_S", -1)
            reader, writer = await opening
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert writer.get_extra_info("aiordma.path") == "rdma"
            assert writer.get_extra_info("socket").getsockname() != address
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("mode", ["auto", "rdma"])
async def test_a_port_of_the_program_s_choice(mode: Any) -> None:
    """It stays, for a plain peer would see another one; where none is served, it is negotiated on."""
    patient = CONFIG.changed(server_first_wait_ms=600_000)
    server: Any = await connection.start_server(echo, "127.0.0.1", 0, config=patient)
    address = server.sockets[0].getsockname()
    async with server:
        first, _ = given_socket._KERNELS_PORTS
        for port in range(first - 1, 1024, -1):
            sock = socket.socket()
            with contextlib.suppress(OSError):  # another program's
                sock.bind(("127.0.0.1", port))
                break
            sock.close()
        with arriving([(socket.AF_INET, address)]):  # it is waited for, however busy the machine is
            sock.connect(address)
            reader, writer = await connection.open_connection(sock=sock, config=CONFIG, mode=mode)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert writer.get_extra_info("aiordma.path") == ("rdma" if mode == "rdma" else "tcp")
        if mode == "auto":
            assert "port" in writer.get_extra_info("aiordma.fallback_reason").text
        assert writer.get_extra_info("sockname")[1] == port
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("api", ["code", "installed"])
@pytest.mark.parametrize("peer", ["plain", "plain, known", "aiordma", "tcp"])
async def test_the_port_of_the_given_socket(peer: str, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays, but where a program that uses aiordma in its code meets a plain server for the first time:
    that has seen a Proposal on the connection, and another one takes its place. (Or where one that may
    negotiate has waited too long for it, see above.)
    """
    monkeypatch.setattr(given_socket, "_LATE_S", -1 if peer == "plain, known" else 600)
    monkeypatch.setattr(given_socket, "_LATE_NEAR_S", 600)
    server: Any
    if peer.startswith("plain"):
        server = await aiordma.unpatched(asyncio.get_running_loop()).create_server(Echoes, LOCAL, 0)
    else:
        mode: Any = "tcp" if peer == "tcp" else "auto"
        patient = CONFIG.changed(server_first_wait_ms=600_000 if mode == "auto" else 0)
        server = await aiordma.create_server(Echoes, LOCAL, 0, config=patient, mode=mode)
    address = server.sockets[0].getsockname()
    async with server:
        if peer == "plain, known":
            reason = FallbackReason.of_local(Code.PLAIN_TCP_PEER)
            peer_cache.remember_plain((*address, False), reason, 3600)
        with arriving([(socket.AF_INET, address)]):
            sock = given(server, with_options=False)
            before = sock.getsockname()
            if api == "code":
                mode = "tcp" if peer == "tcp" else "auto"
                reader, writer = await connection.open_connection(sock=sock, config=CONFIG, mode=mode)
            else:
                aiordma.install(remember=False)
                try:
                    reader, writer = await asyncio.open_connection(sock=sock)
                finally:
                    aiordma.uninstall()
        writer.write(b"hello")
        with anyio.fail_after(30):
            assert await reader.readexactly(5) == b"hello"
        after = writer.get_extra_info("socket").getsockname()
        assert after == writer.get_extra_info("sockname")
        assert (after != before) == (peer == "plain" and api == "code")
        writer.close()
        await writer.wait_closed()


def with_descriptor(number: int) -> socket.socket:
    """A bound socket with this descriptor, or the next one that is free."""
    with socket.socket() as made:
        made.bind((LOCAL, 0))
        return socket.socket(fileno=fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, number))


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_listening_socket_that_the_program_closes(mode: Any) -> None:
    """The server ends, and the next one may get the same descriptor."""
    numbers = []
    for _ in range(2):
        given = with_descriptor(700)
        numbers.append(given.fileno())
        server = await aiordma.create_server(asyncio.Protocol, sock=given, mode=mode)
        given.close()
        server.close()
        await server.wait_closed()
    assert numbers[0] == numbers[1]
