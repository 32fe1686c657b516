"""`aiordma.install()`: what a program's own calls of asyncio become, on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvloop

import aiordma
from aiordma.compat import given_socket
from aiordma.config import Config
from aiordma.errors import Code, FallbackReason
from aiordma.launch import hooks, loading
from aiordma.launch.report import Report
from aiordma.negotiation import peer_cache, peers
from aiordma.negotiation.first_bytes import FirstBytes
from aiordma.negotiation.plain_peers import PlainPeers
from aiordma.negotiation.question import Answer
from aiordma.negotiation.question import ask as ask_whether
from tests import patient
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAR = "127.0.0.3"
"""Counts as another host where a test says so."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    def run(main: Any) -> Any:
        async def limited() -> Any:
            with anyio.fail_after(30):
                return await main

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(limited())

    return run


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


async def ask(*where: Any, **options: Any) -> str | None:
    """Say something on a new connection; its path."""
    reader, writer = await asyncio.open_connection(*where, **options)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    path: str | None = writer.get_extra_info("aiordma.path")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return path


def port_of(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def test_streams_and_protocols(run: Any) -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            assert await ask(LOCAL, port_of(server)) == "rdma"
            assert await ask("localhost", port_of(server), family=socket.AF_INET) == "rdma"
        async with await loop.create_server(Echo, LOCAL, 0) as server:
            assert await ask(LOCAL, port_of(server)) == "rdma"
            sock = socket.create_connection((LOCAL, port_of(server)))
            sock.setblocking(False)
            assert await ask(sock=sock) == "rdma"
            transport, _ = await loop.create_connection(asyncio.Protocol, LOCAL, port_of(server))
            assert transport.get_extra_info("aiordma.path") == "rdma"
            transport.abort()
            plain, _ = await aiordma.unpatched(loop).create_connection(
                asyncio.Protocol, LOCAL, port_of(server)
            )
            assert plain.get_extra_info("aiordma.path") is None
            plain.abort()

    aiordma.install()
    aiordma.install()
    run(main())


def test_descriptors_of_transports_are_refused(run: Any) -> None:
    """Also by uvloop, which knows its own transports only."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            transport, _ = await loop.create_connection(asyncio.Protocol, LOCAL, port_of(server))
            assert transport.get_extra_info("aiordma.path") == "rdma"
            shown = transport.get_extra_info("socket")
            for method in (loop.add_reader, loop.add_writer):
                for descriptor in (shown, shown.fileno()):
                    with pytest.raises(RuntimeError, match="is used by transport"):
                        method(descriptor, print)
            near, far = socket.socketpair()
            with near, far:
                ready = loop.create_future()
                loop.add_reader(near, ready.set_result, None)
                far.send(b"x")
                await ready
                loop.remove_reader(near)
            transport.abort()

    aiordma.install()
    run(main())
    aiordma.uninstall()
    assert not hasattr(uvloop.Loop, "_add_reader")


def test_uninstalled_methods_are_the_loops_own() -> None:
    before = [asyncio.open_connection, asyncio.start_server, asyncio.BaseEventLoop.create_connection]
    aiordma.install()
    inside = [asyncio.open_connection, asyncio.start_server, asyncio.BaseEventLoop.create_connection]
    assert not set(before) & set(inside)
    assert "create_connection" in vars(uvloop.Loop)
    aiordma.uninstall()
    aiordma.uninstall()
    after = [asyncio.open_connection, asyncio.start_server, asyncio.BaseEventLoop.create_connection]
    assert after == before
    assert "create_connection" not in vars(uvloop.Loop)


def test_what_is_uninstalled_hears_of_no_more_paths(caplog: pytest.LogCaptureFixture) -> None:
    """They are in the program's own log again, where its report was to have them alone."""
    caplog.set_level(logging.INFO, "aiordma.clc")
    report = Report()
    aiordma.install(remember=False)
    loading.load("aiordma.compat.connection", report)
    peer_cache.announce("client", "while it is installed", "rdma", None)
    aiordma.uninstall()
    peer_cache.announce("client", "afterwards", "rdma", None)
    assert [row[2] for row in report.counts] == ["while it is installed"]
    assert caplog.messages == ["client afterwards: rdma"]


def test_a_plain_server_of_this_host_sees_nothing_but_the_stream(run: Any, cache: Path) -> None:
    """No Proposal and no second connection: it has not announced itself."""
    heads: list[bytes] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readexactly(5))
        writer.write(heads[-1])
        writer.close()

    async def main() -> None:
        server: Any = await asyncio.start_server(serve_one, "0.0.0.0", 0)
        aiordma.install()
        assert await ask("127.0.0.3", port_of(server)) is None
        server.close()

    run(main())
    aiordma.uninstall()
    assert heads == [b"hello"]
    assert not cache.exists()


def test_an_unknown_server_is_asked_once_and_remembered(
    run: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were on another host: it gets one Proposal, and the next process sends none."""
    heads: list[bytes] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.read(5))
        writer.write(heads[-1] if heads[-1] == b"hello" else b"-ERR Protocol error")
        writer.close()

    async def main() -> None:
        ours = await aiordma.start_server(echo, LOCAL, 0)
        server: Any = await asyncio.start_server(serve_one, FAR, 0)
        for _ in range(2):
            aiordma.install()
            assert await ask(LOCAL, port_of(ours)) == "rdma"  # now aiordma is loaded, and no question asked
            assert await ask(FAR, port_of(server)) in ("tcp", None)
            while not (os.path.exists(cache) and os.path.getsize(cache)):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.001)
            aiordma.uninstall()
            peer_cache.forget()
        assert PlainPeers(cache).is_plain(FAR, port_of(server))
        server.close()
        ours.close()

    monkeypatch.setattr(peers, "is_address_of_this_host", lambda _address: False)
    run(main())
    assert heads[1:] == [b"hello", b"hello"]
    assert heads[0] != b"hello"


@pytest.mark.parametrize("host", [LOCAL, "localhost"])
def test_a_server_that_was_late_once_is_asked_again(run: Any, host: str, cache: Path) -> None:
    """Silence is no answer, and an announcement weighs more than memory."""
    looks, own, late = 0, FirstBytes.are_clc, asyncio.Event()

    async def are_clc(first_bytes: FirstBytes) -> bool | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            await late.wait()
        return await own(first_bytes)

    async def main() -> None:
        async with await aiordma.start_server(echo, LOCAL, 0) as server:
            port = port_of(server)
            assert await ask(host, port) == "tcp"
            patience.undo()
            late.set()
            assert await ask(host, port) == "rdma"
            assert not await asyncio.to_thread(os.path.exists, cache)
            for name in (host, LOCAL):
                await asyncio.to_thread(PlainPeers(cache).remember, name, port, True)
                peer_cache.remember_plain(
                    (name, port, False), FallbackReason.of_local(Code.PLAIN_TCP_PEER), 60
                )
            aiordma.uninstall()
            aiordma.install()  # as another process
            assert await ask(host, port) == "rdma"

    with pytest.MonkeyPatch.context() as patience:
        patient.as_for_users(patience)
        patience.setattr(loading, "_HEAD_START_MS", 0)
        patience.setattr(peer_cache, "_BELIEVED_S", 0)
        patience.setattr(FirstBytes, "are_clc", are_clc)
        aiordma.install()
        run(main())


def test_a_socket_that_waited_while_aiordma_was_loaded(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the server may have taken its client for a silent one: it gets a new connection."""

    async def main() -> None:
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            sock = socket.create_connection((LOCAL, port_of(server)))
            sock.setblocking(False)
            before = sock.getsockname()
            descriptor = sock.fileno()
            aiordma.uninstall()
            aiordma.install()
            reader, writer = await asyncio.open_connection(sock=sock)
            assert writer.get_extra_info("aiordma.path") == "rdma"
            assert writer.get_extra_info("sockname") == sock.getsockname() != before
            assert sock.fileno() == descriptor
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()

    monkeypatch.setattr(given_socket, "_LATE_NEAR_S", -1)
    aiordma.install()
    run(main())


def test_a_client_that_only_asks_does_not_end_a_server_of_anyio(run: Any) -> None:
    """anyio hands each accepted connection to the loop, in the task that accepts."""

    async def echo_once(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.send(await stream.receive())

    async def main() -> None:
        listener = await anyio.create_tcp_listener(local_host=LOCAL)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo_once)
            address = socket.AF_INET, (LOCAL, port)
            for _ in range(3):
                assert await asyncio.to_thread(ask_whether, [address], 20_000) is Answer.NEGOTIATES
            with pytest.raises(aiordma.NegotiationError, match="expect different kinds"):
                await aiordma.connect_datagram(LOCAL, port, config=Config(device=DEVICE))
            async with await aiordma.connect(LOCAL, port, config=Config(device=DEVICE)) as stream:
                await stream.send(b"hello")
                assert (await stream.receive(), stream.path) == (b"hello", "rdma")
            tasks.cancel_scope.cancel()

    aiordma.install()
    run(main())


def test_a_server_that_declines_is_not_plain(run: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had taken its client for a silent one, and served it; then the Proposal came."""

    async def main() -> None:
        served = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.set()
            await echo(reader, writer)

        config = Config(device=DEVICE, server_first_wait_ms=0)
        async with await aiordma.start_server(late, LOCAL, 0, config=config) as server:
            sock = socket.create_connection((LOCAL, port_of(server)))
            sock.setblocking(False)
            await served.wait()
            aiordma.install()
            _, writer = await asyncio.open_connection(sock=sock)
            assert writer.get_extra_info("aiordma.fallback_reason").peer == Code.PLAIN_TCP_PEER
            writer.close()

    for limit in ("_LATE_S", "_LATE_NEAR_S"):  # or an old connection would be made anew
        monkeypatch.setattr(given_socket, limit, 1000)
    run(main())
    assert not cache.exists()


def test_rules(run: Any) -> None:
    async def main() -> None:
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            port = port_of(server)
            for rules, path in {
                f"deny out:*:{port}": None,
                f"allow out:*:{port}": "rdma",
                "allow out:10.0.0.0/8": None,
                "deny in:127.0.0.0/8": "tcp",
                "deny out:127.0.0.0/8": None,
            }.items():
                aiordma.uninstall()
                aiordma.install(rules)
                async with await asyncio.start_server(echo, LOCAL, 0) as ours:
                    where = port if "out" in rules else port_of(ours)
                    assert await ask(LOCAL, where) == path, rules
                    if "127.0.0.0" in rules:
                        assert await ask("localhost", where, family=socket.AF_INET) == path, rules

    aiordma.install()
    run(main())
    aiordma.uninstall()
    with pytest.raises(ValueError, match="must begin with"):
        aiordma.install("forbid *")


def test_tls_stays_tls(run: Any) -> None:
    client_context, server_context = tls_contexts()

    async def main(expected: str | None) -> None:
        async with await asyncio.start_server(echo, LOCAL, 0, ssl=server_context) as server:
            assert await ask(LOCAL, port_of(server), ssl=client_context) == expected

    aiordma.install()
    run(main(None))
    aiordma.uninstall()
    aiordma.install(outside_tls=True)
    run(main("rdma"))


def test_switched_off(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            assert await ask(LOCAL, port_of(server)) is None

    aiordma.install()
    monkeypatch.setenv("AIORDMA_MODE", "tcp")
    run(main())


def test_the_report(run: Any) -> None:
    async def main() -> int:
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            await ask(LOCAL, port_of(server))
            return port_of(server)

    aiordma.install()
    assert hooks._installed is not None
    report = hooks._installed.report
    port = run(main())
    assert report.counts["rdma", "server", f"{LOCAL}:{port}", ""] == 1
    assert report.counts["rdma", "client", LOCAL, ""] == 1
    aiordma.uninstall()
    aiordma.install(f"deny *:{port}")
    assert report.lines()[1:] == [f"  rdma  1  client {LOCAL}", f"  rdma  1  server {LOCAL}:{port}"]


def test_start_tls_of_the_loop(run: Any) -> None:
    """`loop.start_tls()` takes transports of aiordma, and its own again, on uvloop as well."""
    client_context, server_context = tls_contexts()

    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"go on")
        await writer.start_tls(server_context)
        writer.write(await reader.readexactly(6))
        await writer.start_tls(server_context)
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        served.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(serve, LOCAL, 0) as server:
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.create_connection(lambda: protocol, LOCAL, port_of(server))
            transport.write(b"STARTTLS")
            assert await reader.readexactly(5) == b"go on"
            inside: Any = await loop.start_tls(transport, protocol, client_context, server_hostname=LOCAL)
            inside.write(b"secret")
            assert inside.get_extra_info("aiordma.path") == "rdma"
            assert await reader.readexactly(6) == b"secret"
            inner: Any = await loop.start_tls(inside, protocol, client_context, server_hostname=LOCAL)
            inner.write(b"twice")
            assert await reader.readexactly(5) == b"twice"
            inner.close()
            await served.wait()  # else the loop may end before TLS has

    aiordma.install()
    run(main())


@pytest.mark.parametrize("rules", ["", "deny *"])
def test_arguments_are_judged_before_names_are_looked_up(run: Any, rules: str) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        looked_up = []

        async def getaddrinfo(*where: Any, **_: Any) -> list[Any]:
            looked_up.append(where)
            return []

        with pytest.MonkeyPatch.context() as patch:
            if isinstance(loop, asyncio.BaseEventLoop):  # uvloop's loops take no attributes
                patch.setattr(loop, "getaddrinfo", getaddrinfo)
            name = "nowhere.invalid"
            with pytest.raises(ValueError, match="only meaningful with ssl"):
                await loop.create_connection(asyncio.Protocol, name, 80, server_hostname=name)
            with pytest.raises(ValueError, match="only meaningful with ssl"):
                await asyncio.open_connection(name, 80, server_hostname=name)
            makers: list[Any] = [loop.create_server, asyncio.start_server]
            for make in makers:
                with pytest.raises(ValueError, match="can not be specified at the same time"):
                    await make(asyncio.Protocol, name, 80, sock=object())
            assert not looked_up

    aiordma.install(rules)
    run(main())


def test_a_server_of_a_name_without_addresses(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            return  # uvloop looks names up below its own attributes

        async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
            return []

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        with pytest.raises(OSError, match="returned empty list"):
            await loop.create_server(asyncio.Protocol, LOCAL, 0)

    aiordma.install()
    run(main())
