"""A silent client of the server's host is a plain one, unless some client has said that it will speak."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import trio.testing

import aiordma
from aiordma.compat import connection
from aiordma.config import Config
from aiordma.negotiation import announcement, first_bytes, peer_cache
from aiordma.negotiation import connect as connecting
from aiordma.negotiation.announcement import arriving, is_expected
from aiordma.negotiation.tcp_connect import connect_tcp
from aiordma.testing import VirtualLoop
from tests.health import check_echo, check_end, until
from tests.links.pregranted.known import forbid_asking, known_peer
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

from .serving import LOCAL, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.streams.stream import RdmaStream

    from .fake import Engine

FOREVER = 600_000
"""Milliseconds that the test does not live to see."""
BANNER = b"220 at your service\r\n"
#: Seconds that a server waits at most for a client of its host that nobody announces. Virtual time is exact.
SOON = 0.05
#: What is computed with floats.
EXACT = 1e-6
PATIENT = Config(server_first_wait_ms=FOREVER, negotiate_timeout_ms=FOREVER)
# Abstract names belong to the network namespace, so to all workers.
pytestmark = pytest.mark.xdist_group("arrival")


def address(port: int, host: str = LOCAL) -> list[tuple[int, Any]]:
    return [(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))]


async def greet(stream: RdmaStream) -> None:
    """Speak first, as servers of mail, of files and of MySQL do."""
    async with stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(BANNER)
            await stream.send(await stream.receive())


#: Seconds.
SESSION = 30


class Greeter(asyncio.Protocol):
    """Its own clock begins with the connection."""

    def connection_made(self, transport: Any) -> None:
        transport.write(BANNER)
        asyncio.get_running_loop().call_later(SESSION, transport.close)


async def greet_a_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The same."""
    writer.write(BANNER)
    await asyncio.sleep(SESSION)
    writer.close()


# ---- the names


def test_a_name_is_there_while_clients_of_its_port_are() -> None:
    port, other = 5, 6  # no server has these
    assert not is_expected(port)
    with arriving([*address(port), *address(port, "::1"), *address(other)]):
        with arriving(address(port)):
            assert is_expected(port)
        assert is_expected(port)
        assert is_expected(other)
    assert not is_expected(port)
    assert not is_expected(other)
    assert announcement._names == {}


def test_a_server_of_another_host_needs_no_name() -> None:
    with arriving(address(7, "192.0.2.1")):
        assert not is_expected(7)


def output_of(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()


def test_another_process_sees_it() -> None:
    program = "from aiordma.negotiation.announcement import is_expected; print(is_expected(8))"
    with arriving(address(8)):
        assert output_of(program) == "True"
    assert output_of(program) == "False"


def test_a_forked_child_does_not_keep_it() -> None:
    program = """
import os
from aiordma.negotiation.announcement import arriving, is_expected

there, here = os.pipe()
with arriving([(2, ("127.0.0.1", 8))]):
    if not os.fork():  # it lives until the other end of the pipe is closed
        os.close(here)
        print(is_expected(8), os.read(there, 1), flush=True)
        os._exit(0)
    assert is_expected(8)
while is_expected(8):  # until the child has run
    pass
os.close(here)
os.wait()
"""
    assert output_of(program) in ("True b''", "False b''")


def test_the_collector_may_end_a_connect_at_any_moment() -> None:
    """Also where its thread counts, for another connect."""
    program = """
import faulthandler
from aiordma.negotiation import announcement

faulthandler.dump_traceback_later(60, exit=True)
ports = announcement.arrive([(2, ("127.0.0.1", 8)), (2, ("127.0.0.1", 9))])
with announcement._lock:
    announcement.leave(ports)
announcement.leave(announcement.arrive([(2, ("127.0.0.1", 9))]))
print(announcement._names, announcement.is_expected(8), announcement.is_expected(9))
"""
    assert output_of(program) == "{} False False"


def test_without_a_name_to_bind_those_of_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "_CLIENT", announcement._CLIENT._replace(slots=1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.bind("\0aiordma-client.9.0")
        with arriving(address(9)):
            assert is_expected(9)
        assert is_expected(9)
    assert not is_expected(9)


# ---- plain clients of a server that speaks first: it waits in virtual time


def run_virtually(loop: str, main: Callable[[], Any]) -> Any:
    if loop == "trio":
        clock = trio.testing.MockClock(autojump_threshold=0.002)
        return trio.run(main, clock=clock)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_a_plain_client_has_the_banner_soon(engine: Engine, host: str, loop: str) -> None:
    async def main() -> None:
        listener = await aiordma.listen(host, config=PATIENT)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, greet)
            began = anyio.current_time()
            async with await anyio.connect_tcp(host, listener.port) as client:
                assert await client.receive() == BANNER
            assert 0 < anyio.current_time() - began <= SOON + EXACT
            tasks.cancel_scope.cancel()

    run_virtually(loop, main)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_it_waits_as_long_as_one_is_to_be_expected(engine: Engine, loop: str) -> None:
    """Also if another user has bound the name: no longer than clients of other hosts wait."""

    async def main() -> None:
        async with serving(greet, config=Config(server_first_wait_ms=2_000)) as listener:
            with arriving(address(listener.port)):
                began = anyio.current_time()
                async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                    assert await client.receive() == BANNER
                assert anyio.current_time() - began == pytest.approx(2, abs=EXACT)
                began = anyio.current_time()
                async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                    with anyio.move_on_after(0.7):
                        await client.receive()
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                began = anyio.current_time()
                assert await client.receive() == BANNER
                assert anyio.current_time() - began <= SOON + EXACT

    run_virtually(loop, main)


def test_one_of_another_host_has_the_time_that_is_set(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bytes, "_is_near", lambda _io: False)

    async def main() -> None:
        async with serving(greet, config=Config(server_first_wait_ms=2_000)) as listener:
            began = anyio.current_time()
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                assert await client.receive() == BANNER
            assert anyio.current_time() - began == pytest.approx(2, abs=EXACT)

    run_virtually("asyncio", main)


@pytest.mark.parametrize("surface", ["transport", "writer"])
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
def test_servers_of_asyncio(engine: Engine, tls: bool, surface: str) -> None:
    client, server = tls_contexts()
    ours: dict[str, Any] = {"ssl": server, "rdma_outside_tls": True} if tls else {}
    theirs: dict[str, Any] = {"ssl": client, "server_hostname": LOCAL} if tls else {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if surface == "transport":
            listening = await connection.create_server(Greeter, LOCAL, 0, config=PATIENT, **ours)
        else:
            listening = await connection.start_server(greet_a_client, LOCAL, 0, config=PATIENT, **ours)
        async with listening:
            began = loop.time()
            port = listening.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
            reader, writer = await asyncio.open_connection(LOCAL, port, **theirs)
            assert await reader.readexactly(len(BANNER)) == BANNER
            assert 0 < loop.time() - began <= SOON + EXACT
            # What the program times by itself is no later.
            assert await reader.read() == b""
            assert SESSION <= loop.time() - began <= SESSION + SOON + EXACT
            writer.close()
            await writer.wait_closed()

    run_virtually("asyncio", main)


# ---- clients of aiordma that are held up: they are waited for


def held_up(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The process stands still after its TCP connection is made, as when the machine is busy."""

    async def late(*arguments: Any) -> socket.socket:
        sock = await connect_tcp(*arguments)
        await anyio.sleep(seconds)
        return sock

    monkeypatch.setattr(connecting, "connect_tcp", late)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("mode", ["auto", "rdma"])
def test_a_negotiation_that_begins_late(
    engine: Engine, mode: Any, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up(monkeypatch, 1.5)
    patient = Config(head_start_ms=FOREVER, negotiate_timeout_ms=FOREVER)

    async def main() -> None:
        async with serving(greet, config=Config(server_first_wait_ms=2_000)) as listener:
            async with await aiordma.connect(LOCAL, listener.port, mode=mode, config=patient) as stream:
                assert stream.path == "rdma"
                assert await stream.receive(len(BANNER)) == BANNER

    run_virtually(loop, main)


@pytest.mark.anyio
async def test_with_rings_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that did not run for longer than plain clients are waited for: it is on RDMA all the same."""
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    async with serving(config=config) as listener, known_peer(listener.port) as known:
        for announced in (True, False):
            await known.has_grant()
            with monkeypatch.context() as patches:
                held_up(patches, 0.1)
                if announced:  # it waits for whoever has the name, so the ring is begun on all the same
                    forbid_asking(patches, known.engine)
                else:  # behind a forwarder, perhaps, where it sees no name
                    patches.setattr(peer_cache, "is_announced", lambda _port: False)
                    patches.setattr(known.engine, "open_early", None)
                async with await known.connect(config=config) as stream:
                    assert stream.path == "rdma"
                    await check_echo(stream)
                    await check_end(stream)
        assert listener.statistics().tcp == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_given_socket_that_is_old() -> None:
    """The server may have taken it for a plain client's. A new one is on RDMA."""
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    made: list[Any] = []

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.append(transport)

        def data_received(self, data: bytes) -> None:
            made[-1].write(data)

    async with await connection.create_server(Echo, LOCAL, 0, config=config) as server:
        for decided in (False, True):
            made.clear()
            sock = socket.create_connection(server.sockets[0].getsockname())  # type: ignore[attr-defined]
            with arriving([] if decided else address(sock.getpeername()[1])):
                if decided:
                    await until(lambda: bool(made))
                else:
                    await asyncio.sleep(0.05)
                reader, writer = await connection.open_connection(sock=sock, config=config)
            assert writer.get_extra_info("aiordma.path") == "rdma"
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            # The old one is shown only if it was before.
            assert len(made) == (2 if decided else 1)
            writer.close()
            await writer.wait_closed()
