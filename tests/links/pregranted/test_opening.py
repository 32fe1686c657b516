"""Connections that begin on pre-granted rings: no round trip, and no byte lost."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.compat.connection import open_connection, start_server
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.negotiation import connect as connecting
from aiordma.negotiation import peer_cache
from aiordma.negotiation.first_bytes import FirstBytes
from aiordma.negotiation.options import PathOptions
from aiordma.negotiation.tcp_connect import connect_tcp
from tests.cancelling import at_await, at_turn
from tests.health import check_echo, check_end, descriptors, nothing_left, until
from tests.negotiation.serving import serving
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.virtual import in_virtual_time
from tests.world import DEVICE

from .known import forbid_asking, get_known, known_peer

if TYPE_CHECKING:
    import asyncio

    from aiordma.negotiation.clc_io import ClcIO

pytestmark = pytest.mark.anyio
SOFT = Config(device=DEVICE)
ECHO = "tests.roles:echo_server"


async def test_the_second_connection_brings_grants_and_the_third_uses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        forbid_asking(monkeypatch, known.engine)
        for _ in range(5):
            await known.has_grant()
            async with await known.connect() as stream:
                assert stream.path == "rdma"
                assert stream.fallback_reason is None
                assert stream.extra(anyio.abc.SocketAttribute.remote_port) == listener.port
                await check_echo(stream)
                await check_end(stream)
        assert listener.statistics().rdma == 7


async def test_what_is_sent_before_the_server_has_seen_anything_is_there() -> None:
    """The server accepts nothing until the client has sent, finished and closed."""
    got: list[bytes] = []

    async def collect(stream: aiordma.RdmaStream) -> None:
        async with stream:
            got.append(b"".join([part async for part in stream]))

    async with serving(collect, config=SOFT) as listener, known_peer(listener.port) as known:
        data = bytes(range(256)) * 400  # less than a ring
        accepted = listener.statistics().accepted
        stream = await known.connect()
        assert stream.send_nowait(data) == len(data)
        assert listener.statistics().accepted == accepted
        await stream.aclose()
        await until(lambda: data in got)


async def test_a_client_that_did_not_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has taken it for a plain one before its first byte: no byte may go into the ring."""
    impatient = Config(device=DEVICE, server_first_wait_ms=20)
    wait = FirstBytes.__init__

    def wait_briefly(first_bytes: FirstBytes, io: ClcIO, options: PathOptions, **known: bool) -> None:
        wait(first_bytes, io, PathOptions(impatient, options.mode), **known)

    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        plain = listener.statistics().tcp

        async def late(*arguments: Any) -> Any:
            sock = await connect_tcp(*arguments)
            await until(lambda: listener.statistics().tcp > plain)
            return sock

        monkeypatch.setattr(connecting, "connect_tcp", late)
        monkeypatch.setattr(FirstBytes, "__init__", wait_briefly)
        async with await aiordma.connect(LOCAL, known.port, config=impatient) as stream:
            assert stream.path == "tcp"
            await check_echo(stream)
            await check_end(stream)
        monkeypatch.undo()
        # The ring is still there for the next one.
        async with await known.connect() as stream:
            assert stream.path == "rdma"
            await check_echo(stream)
            await check_end(stream)


async def test_more_than_a_ring_waits_for_the_server() -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        async with await known.connect() as stream:
            await check_echo(stream, bytes(range(256)) * 8000)
            await check_end(stream)


async def test_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections at a time than grants: the rest negotiates in full; each has its own data."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        at_once = 0
        open_early = known.engine.open_early

        def count(*arguments: Any) -> Any:
            nonlocal at_once
            pipe = open_early(*arguments)
            at_once += pipe is not None
            return pipe

        monkeypatch.setattr(known.engine, "open_early", count)

        async def one(number: int) -> None:
            async with await known.connect() as stream:
                await check_echo(stream, f"connection {number} ".encode() * 2000)
                await check_end(stream)

        for turn in range(4):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(one, 100 * turn + number)
        assert at_once >= 4
        assert len(known.granter) <= known.engine.config.tickets


async def test_with_no_ring_left_it_waits_for_no_other_client_to_find_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its TCP connection is open, and the server would take the silent client for a plain one."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        monkeypatch.setattr(known.engine, "open_early", lambda *_: None)
        peer_cache.forget()
        # Of many that begin at once, the first has its link, and so the rings, before it has its answer.
        async with peer_cache.ask_alone((LOCAL, listener.port, False)):
            with anyio.fail_after(30):
                async with await aiordma.connect(LOCAL, listener.port, config=SOFT) as stream:
                    assert stream.path == "rdma"
                    await check_echo(stream)
                    await check_end(stream)
        assert listener.statistics().tcp == 0


@in_virtual_time
async def test_a_busy_server_is_no_plain_one_while_its_link_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers long after the head start: nothing is opened beside the connection meanwhile."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        monkeypatch.setattr(known.engine, "open_early", lambda *_: None)
        answer, accepted = known.engine.answer, listener.statistics().accepted

        async def late(*arguments: Any) -> Any:
            await anyio.sleep(4)
            return await answer(*arguments)

        monkeypatch.setattr(known.engine, "answer", late)
        async with await aiordma.connect(LOCAL, listener.port, config=SOFT) as stream:
            assert stream.path == "rdma"
            await check_echo(stream)
            await check_end(stream)
        assert listener.statistics().accepted == accepted + 1


async def test_with_a_window_of_one_message() -> None:
    """Grants wait their turn when there is no credit for them, and break nothing."""
    engine = await engines.current(Config(device=DEVICE, window=1))
    async with nothing_left(), serving(echo, config=engine.config) as listener:
        known = await get_known(listener.port)

        async def one() -> None:
            async with await known.connect() as stream:
                await check_echo(stream, b"some words" * 1000)
                await check_end(stream)

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(one)
        await known.has_grant()


def sockets() -> list[str]:
    return [name for name in descriptors() if name.startswith("socket:")]


@pytest.mark.parametrize("way", [at_await, at_turn], ids=["await", "turn"])
async def test_cancelled_anywhere(way: Any) -> None:
    with process(ECHO) as server:
        async with known_peer(await server.heard()) as known:
            await until(lambda: not any(g.members for g in known.engine.all_groups), known.counts)
            before = sockets()
            completed = 0
            for n in range(1, 30):
                await known.has_grant()
                done, stream = await way(n, known.connect)
                if done:
                    completed += 1
                    async with stream:
                        await check_echo(stream, b"still there")
                        await check_end(stream)
            assert completed
            await until(lambda: not any(g.members for g in known.engine.all_groups), known.counts)
            assert sockets() == before


async def test_a_client_that_aborts_at_once() -> None:
    """Its server sees a stream that was aborted, and nothing is left at either end."""
    seen: list[BaseException] = []

    async def note(stream: aiordma.RdmaStream) -> None:
        async with stream:
            try:
                await stream.receive()
            except anyio.BrokenResourceError as error:
                seen.append(error)
            except anyio.EndOfStream:
                pass

    async with serving(note, config=SOFT) as listener, known_peer(listener.port) as known:
        stream = await known.connect()
        stream.send_nowait(b"never mind")
        await anyio.aclose_forcefully(stream)
        await until(lambda: not any(g.members for g in known.engine.all_groups), known.counts)
        assert not seen  # data came first


async def test_servers_answer_into_the_ring_of_a_stream_opened_at_once() -> None:
    """The server speaks first, before the client has sent anything."""

    async def greet(stream: aiordma.RdmaStream) -> None:
        async with stream:
            await stream.send(b"welcome")
            await stream.send_eof()
            async for _ in stream:
                pass

    async with serving(greet, config=SOFT) as listener, known_peer(listener.port) as known:
        async with await known.connect() as stream:
            assert b"".join([part async for part in stream]) == b"welcome"


@pytest.mark.parametrize(
    "anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_on_the_asyncio_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    engine = await engines.current(SOFT)
    async with nothing_left(), await start_server(answer, LOCAL, 0) as server:
        port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        known = await get_known(port)
        await known.has_grant()
        forbid_asking(monkeypatch, engine)
        for number in range(5):
            await known.has_grant()
            reader, writer = await open_connection(LOCAL, port)
            assert writer.get_extra_info("aiordma.path") == "rdma"
            assert writer.get_extra_info("peername") == (LOCAL, port)
            writer.write(b"words" * number)
            writer.write_eof()
            assert await reader.read() == b"words" * number
            writer.close()
            await writer.wait_closed()


async def test_a_socket_from_outside_grants_no_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes may accept from it, too, as with reuse_port; TLS has tickets of its own."""
    engine = await engines.current(SOFT)
    opened: list[object] = []
    monkeypatch.setattr(engine, "grant_rings", lambda has_room: opened.append(has_room))
    async with await aiordma.listen(LOCAL, config=SOFT, reuse_port=True):
        pass
    async with await aiordma.listen(config=SOFT, sockets=[socket.create_server((LOCAL, 0))]):
        pass
    async with await aiordma.listen(LOCAL, config=SOFT, mode="tcp"):
        pass
    assert not opened
    async with await aiordma.listen(LOCAL, config=SOFT):
        pass
    assert len(opened) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_servers_that_share_their_port_grant_no_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await engines.current(SOFT)
    opened: list[object] = []
    monkeypatch.setattr(engine, "grant_rings", lambda has_room: opened.append(has_room))

    async def serve(reader: object, writer: object) -> None:
        raise AssertionError

    with socket.create_server((LOCAL, 0)) as sock:
        (await start_server(serve, sock=sock)).close()
    (await start_server(serve, LOCAL, 0, reuse_port=True)).close()
    (await start_server(serve, LOCAL, 0, mode="tcp")).close()
    assert not opened
    (await start_server(serve, LOCAL, 0)).close()
    assert len(opened) == 1


@pytest.mark.parametrize("which", ["client", "server"])
async def test_switched_off(which: str) -> None:
    """The setting of either end suffices."""
    engine = await engines.current(Config(device=DEVICE, tickets=0 if which == "client" else 8))
    settings: dict[str, Any] = {"tickets": 0} if which == "server" else {}
    async with nothing_left():
        with process(ECHO, **settings) as server:
            known = await get_known(await server.heard())
            for _ in range(3):
                async with await known.connect() as stream:
                    await check_echo(stream, b"in full")
                    await check_end(stream)
            assert known.counts() == [("client", 0)]
            assert not engine.early_servers


async def test_an_address_translated_on_the_way_grants_no_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several servers may be behind it."""
    monkeypatch.setattr("aiordma.links.pregranted._packed", lambda address: (bytes(16), 1))
    engine = await engines.current(SOFT)
    async with nothing_left(), serving(echo, config=SOFT) as listener:
        known = await get_known(listener.port)
        async with await known.connect() as stream:
            await check_end(stream)
        await until(lambda: all(count == 0 for _, count in known.counts()), known.counts)
        assert not engine.early_servers


def test_addresses_are_compared_as_they_are_shown() -> None:
    from aiordma.links.pregranted import _packed, _shown

    assert _shown(*_packed(("127.0.0.1", 80))) == "127.0.0.1:80"
    assert _shown(*_packed(("::1", 65535))) == "[::1]:65535"
    assert _packed(("fe80::1%eth0", 1)) == _packed(("fe80::1", 1))
