"""Names, addresses and ports of the asyncio surface, as asyncio has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel as channels
from aiordma.config import Config
from tests.loops import LOOPS
from tests.roles import LOCAL, port_of
from tests.streams.pairs import tls_contexts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    writer.close()


async def say(address: Any, **options: Any) -> Any:
    """What an echo server answers, and the names of both ends."""
    reader, writer = await aiordma.open_connection(*address, **options)
    writer.write(b"hello")
    with anyio.fail_after(20):
        assert await reader.read() == b"hello"
    names = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    writer.close()
    return names


def port_of_closed() -> int:
    with socket.create_server((LOCAL, 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("mode", ["auto", "tcp"])
@pytest.mark.parametrize("options", [{}, {"family": socket.AF_INET}, {"family": socket.AF_INET, "proto": 6}])
async def test_all_addresses_of_a_name_are_tried(
    mode: Any, options: Any, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is dead. The name comes as text to what a program has put in the place of the look-up."""
    if mode == "tcp" and anyio_backend[1]["use_uvloop"]:
        pytest.skip("uvloop's connections look up by themselves")
    server = await aiordma.start_server(echo, LOCAL, 0, mode=mode)
    asked: list[Any] = []

    async def getaddrinfo(host: Any, port: Any, **_: Any) -> Any:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.9", LOCAL)]

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    peer, _ = await say(("two.example", port_of(server)), mode=mode, **options)
    assert peer == (LOCAL, port_of(server))
    assert asked == ["two.example"]
    server.close()
    with pytest.raises(OSError, match=r"127\.0\.0\.9.*127\.0\.0\.1"):
        await say(("two.example", port_of_closed()), mode=mode, **options)
    if mode == "auto":  # or a loop of Python 3.12
        with pytest.raises(ExceptionGroup) as caught:
            await say(("two.example", port_of_closed()), mode=mode, all_errors=True, **options)
        assert len(caught.value.exceptions) == 2


@contextlib.asynccontextmanager
async def closing(making: Any) -> AsyncIterator[None]:
    """Around a server or an endpoint that asyncio's surface makes."""
    made = await making
    made = made[0] if isinstance(made, tuple) else made
    yield
    made.close()
    await asyncio.sleep(0)


#: The name of a host, a mode -> something for ``async with``.
SERVERS: dict[str, Callable[[str, Any], Any]] = {
    "create_server": lambda host, mode: closing(aiordma.create_server(Echo, host, 0, mode=mode)),
    "start_server": lambda host, mode: closing(aiordma.start_server(echo, host, 0, mode=mode)),
    "create_datagram_server": lambda host, mode: closing(
        aiordma.create_datagram_server(Echo, host, 0, mode=mode)
    ),
    "create_datagram_endpoint": lambda host, mode: closing(
        aiordma.create_datagram_endpoint(Echo, (host, 0), mode=mode)
    ),
    "open_datagram_endpoint": lambda host, mode: aiordma.open_datagram_endpoint((host, 0), mode=mode),
    "listen": lambda host, mode: aiordma.listen(host, 0, mode=mode),
    "listen_datagram": lambda host, mode: aiordma.listen_datagram(host, 0, mode=mode),
    "rpc.serve": lambda host, mode: rpc.serve([], host, 0, mode=mode),
    "memory.serve": lambda host, mode: memory.serve(host, 0, mode=mode),
}


@pytest.mark.parametrize("anyio_backend", [LOOPS["asyncio"]], ids=["asyncio"])  # uvloop looks up by itself
@pytest.mark.parametrize("mode", ["auto", "tcp"])
@pytest.mark.parametrize("way", SERVERS)
async def test_the_name_of_a_server_is_looked_up_as_text(
    way: str, mode: str, anyio_backend: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what a program has put in the place of `socket.getaddrinfo`."""
    known = socket.getaddrinfo
    asked: list[Any] = []

    def look_up(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if host == LOCAL:  # the address of what was found
            return known(host, port, *arguments, **named)
        asked.append(host)
        return known(LOCAL, port, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with SERVERS[way]("server.example", mode):
        pass
    assert asked
    assert set(asked) == {"server.example"}


@pytest.mark.parametrize(
    ("mode", "tls"), [("auto", None), ("tcp", None), ("auto", "the loop's"), ("auto", "ours")]
)
async def test_names_of_ipv6_have_four_fields(mode: Any, tls: str | None) -> None:
    client, serving = tls_contexts()
    ours: dict[str, Any] = {"ssl": serving} if tls else {}
    theirs: dict[str, Any] = {"ssl": client, "server_hostname": LOCAL} if ours else {}
    if tls == "ours":
        for options in (ours, theirs):
            options.update(rdma_outside_tls=True, config=Config(device="none"))
    seen: list[Any] = []

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(writer.get_extra_info(name) for name in ("sockname", "peername"))
        await echo(reader, writer)

    server = await aiordma.start_server(look, "::1", 0, mode=mode, **ours)
    peer, own = await say(("::1", port_of(server)), mode=mode, **theirs)
    assert [peer, own] == seen
    assert peer == ("::1", port_of(server), 0, 0)
    assert len(own) == 4
    server.close()


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if data == b"question":
            self.transport.sendto(b"answer", addr)
        self.came.set_result(addr)


NOWHERE = ("nowhere.example", 1)
BY_NAME: dict[str, Callable[[], Any]] = {
    "open_connection": lambda: aiordma.open_connection(*NOWHERE),
    "open_connection, of a family": lambda: aiordma.open_connection(*NOWHERE, family=socket.AF_INET),
    "create_connection": lambda: aiordma.create_connection(asyncio.Protocol, *NOWHERE),
    "start_server": lambda: aiordma.start_server(echo, *NOWHERE),
    "connect": lambda: aiordma.connect(*NOWHERE),
    "listen": lambda: aiordma.listen(*NOWHERE),
    "connect_datagram": lambda: aiordma.connect_datagram(*NOWHERE),
    "an endpoint": lambda: aiordma.open_datagram_endpoint(NOWHERE),
    "an endpoint with a peer": lambda: aiordma.open_datagram_endpoint(remote=NOWHERE),
    "create_datagram_endpoint": lambda: aiordma.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=NOWHERE
    ),
    "rpc": lambda: contextlib.AsyncExitStack().enter_async_context(rpc.connect(*NOWHERE)),
    "memory": lambda: memory.connect(*NOWHERE),
}


@pytest.mark.parametrize("what", BY_NAME)
async def test_a_name_without_addresses(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program puts in the place of the look-up may find none, and raise nothing."""

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(OSError, match=r"empty list|cannot look up"):
        await BY_NAME[what]()


@pytest.mark.parametrize("mode", ["auto", "tcp"])
@pytest.mark.parametrize("remote", [True, False])
async def test_senders_of_datagrams_by_ipv6_have_four_fields(mode: Any, remote: bool) -> None:
    serving, server = await aiordma.create_datagram_endpoint(Echo, ("::1", 0), mode=mode)
    address = serving.get_extra_info("sockname")
    where = {"remote_addr": address[:2]} if remote else {"local_addr": ("::1", 0)}
    asking, client = await aiordma.create_datagram_endpoint(Echo, mode=mode, **where)
    asking.sendto(b"question", address)
    with anyio.fail_after(20):
        assert await client.came == address
        assert (await server.came)[1] == asking.get_extra_info("sockname")[1]
        assert len(await server.came) == 4
    assert len(address) == 4
    assert asking.get_extra_info("peername") == (address if remote else None)
    asking.close()
    serving.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("port", [70000, -1, 65536, "70000", b"65536"])
@pytest.mark.parametrize("host", [LOCAL, None, "localhost"])
async def test_a_port_that_no_socket_has(port: Any, host: Any) -> None:
    with pytest.raises(OverflowError, match="0-65535"):
        await aiordma.create_server(asyncio.Protocol, host, port)
    with pytest.raises(OverflowError, match="0-65535"):
        await aiordma.start_server(echo, host, port)
    if host is not None:
        with pytest.raises(OverflowError, match="0-65535"):
            await aiordma.create_connection(asyncio.Protocol, host, port)
        with pytest.raises(OverflowError, match="0-65535"):
            await aiordma.open_connection(host, port)


@pytest.mark.parametrize("port", [70000, -1, 65536])
async def test_a_port_that_no_datagram_socket_has(port: Any) -> None:
    both: list[dict[str, Any]] = [{"local_addr": (LOCAL, port)}, {"remote_addr": (LOCAL, port)}]
    for options in both:
        with pytest.raises(OverflowError, match="0-65535"):
            await aiordma.create_datagram_endpoint(Echo, **options)


async def test_a_host_in_bytes() -> None:
    server = await aiordma.start_server(echo, LOCAL, 0)
    await say((LOCAL.encode(), port_of(server)))
    server.close()


async def test_a_local_address_that_is_no_pair() -> None:
    with pytest.raises(ValueError, match="unpack"):
        await aiordma.open_connection(LOCAL, 9, local_addr=(LOCAL,))


def path_of(stream: Any) -> object:
    return stream.socket.stream.path


def say_by_trio(host: str, scope: int) -> None:
    """A connection of trio's, under `aiordma.install()`."""
    import trio

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host=host)
        port = listener.socket.getsockname()[1]

        async def speak() -> None:
            async with await trio.open_tcp_stream(host, port) as one:
                assert one.socket.getpeername() == ("fe80::1", port, 0, scope)
                assert path_of(one) == "rdma"
                await one.send_all(b"hello")

        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            async with await listener.accept() as other:
                assert await other.receive_some() == b"hello"
                assert await other.receive_some() == b""

    aiordma.install(remember=False)
    try:
        trio.run(main)
    finally:
        aiordma.uninstall()


async def say_by_asyncio(host: str, scope: int) -> None:
    """A connection of asyncio's own functions, under `aiordma.install()`."""
    aiordma.install(remember=False)
    try:
        server = await asyncio.start_server(echo, host, 0)
        port = port_of(server)
        reader, writer = await asyncio.open_connection(host, port)
        assert writer.get_extra_info("aiordma.path") == "rdma"
        assert writer.get_extra_info("peername") == ("fe80::1", port, 0, scope)
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        server.close()
    finally:
        aiordma.uninstall()


async def test_a_scope_of_a_link_local_address() -> None:
    """`fe80::1%lo`, on each surface."""
    if "AIORDMA_TEST_SCOPE" not in os.environ:
        pytest.skip("runs in a network namespace of its own, see below")
    host = "fe80::1%lo"
    scope = socket.if_nametoindex("lo")
    for mode in ("auto", "tcp"):
        server = await aiordma.start_server(echo, host, 0, mode=mode)
        port = port_of(server)
        bound: list[dict[str, Any]] = (
            [{"local_addr": (host, 0)}] if mode == "auto" else []
        )  # not uvloop's own
        for options in ({}, {"family": socket.AF_INET6}, *bound):
            peer, own = await say((host, port), mode=mode, **options)
            assert peer == ("fe80::1", port, 0, scope)
            assert own[3] == scope
        with socket.socket(socket.AF_INET6) as sock:
            await asyncio.to_thread(sock.connect, ("fe80::1", port, 0, scope))  # uvloop's drops the scope
            await say((), sock=sock, mode=mode)
        server.close()
        async with await aiordma.listen(host, 0, mode=mode) as listener:
            stream = await aiordma.connect(host, listener.port, mode=mode)
            served = await listener.accept()
            await stream.send(b"hello")
            assert await served.receive() == b"hello"
            await stream.aclose()
            await served.aclose()
        async with await channels.listen(host, 0, mode=mode) as listening:
            one = await channels.connect(host, listening.port, mode=mode)
            other = await listening.accept()
            one.abort()
            other.abort()
        async with (
            rpc.serve((), host, mode=mode) as calls,
            rpc.connect(host, calls.port, mode=mode) as caller,
        ):
            assert caller.path == ("tcp" if mode == "tcp" else "rdma")
            async with rpc.connect_pool([(host, calls.port)], mode=mode) as pool:
                assert pool.pick().path == caller.path
        async with (
            memory.serve(host, mode=mode) as owner,
            await memory.connect(host, owner.port, mode=mode) as visitor,
        ):
            assert visitor.path == ("tcp" if mode == "tcp" else "rdma")
        async with (
            await aiordma.listen_datagram(host, 0, mode=mode) as taking,
            await aiordma.connect_datagram(host, taking.port, mode=mode) as giving,
            await taking.accept() as taken,
        ):
            await giving.send(b"hello")
            assert await taken.receive() == b"hello"
        datagrams = await aiordma.create_datagram_server(asyncio.DatagramProtocol, host, mode=mode)
        answers, _ = await aiordma.create_datagram_connection(
            asyncio.DatagramProtocol, host, port_of(datagrams), mode=mode
        )
        datagrams.close()
        assert answers.get_extra_info("peername")[3] == answers.get_extra_info("sockname")[3] == scope
        answers.abort()
        if mode == "auto":
            await asyncio.to_thread(say_by_trio, host, scope)
            await say_by_asyncio(host, scope)
        serving, answering = await aiordma.create_datagram_endpoint(Echo, (host, 0), mode=mode)
        address = serving.get_extra_info("sockname")
        assert address[3] == scope
        for to in (address, (f"fe80::1%{scope}", address[1])):
            asking, client = await aiordma.create_datagram_endpoint(Echo, (host, 0), mode=mode)
            answering.came = asyncio.get_running_loop().create_future()
            asking.sendto(b"question", to)
            with anyio.fail_after(20):
                assert await client.came == address
            asking.close()
        serving.close()
        await asyncio.sleep(0)


def test_scopes_in_a_network_namespace() -> None:
    script = (
        "ip link set lo up && ip -6 addr add fe80::1/64 dev lo && "
        'AIORDMA_TEST_SCOPE=1 exec "$1" -m pytest -q -p no:cacheprovider -p no:xdist -k link_local "$2"'
    )
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip (iproute2), which gives the namespace its address")
    made = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("no network namespace can be made here")
    command = ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, __file__]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
