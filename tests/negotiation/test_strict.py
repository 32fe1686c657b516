"""Where each host of a network is set up for the TCP option, who does not send it speaks plain TCP: no byte
is held for it, and none of the negotiation is sent to it.

The kernel's program is a stand-in here; ``test_syn_options.py`` has the program itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.links import engine as links_engine
from aiordma.negotiation import announcement, connect, first_bytes, peer_cache
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.question import Answer, ask
from aiordma.negotiation.smc_option import of_setting
from aiordma.proto.syn_option import SynOption
from tests.kernel_option import Options, options
from tests.processes import PATIENCE
from tests.roles import echo
from tests.virtual import in_virtual_time
from tests.world import DEVICE

from .serving import LOCAL, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiordma.streams.stream import RdmaStream

__all__ = ["options"]

pytestmark = pytest.mark.anyio

FOREVER = 600_000
"""Milliseconds that the test does not live to see."""
STRICT = Config(device=DEVICE, smcr_strict=1, server_first_wait_ms=FOREVER, head_start_ms=FOREVER)
WITHOUT = Config(device=DEVICE, smcr="off", head_start_ms=FOREVER)
FROM_AIORDMA = SynOption(1, in_answer=True)


@pytest.fixture
def asyncio_only(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("asyncio's streams do not run on trio")


class Plain:
    """A server that knows nothing of aiordma: what each of its connections has received."""

    def __init__(self, greeting: bytes) -> None:
        self.greeting = greeting
        self.received: list[bytes] = []

    async def handle(self, stream: Any) -> None:
        async with stream:
            at = len(self.received)
            self.received.append(b"")
            if self.greeting:
                await stream.send(self.greeting)
            with contextlib.suppress(anyio.EndOfStream):
                while len(self.received[at]) < 5:
                    self.received[at] += await stream.receive()
                await stream.send(self.received[at])


@asynccontextmanager
async def plain_server(greeting: bytes) -> AsyncIterator[tuple[Plain, int]]:
    plain = Plain(greeting)
    listener = await anyio.create_tcp_listener(local_host=LOCAL)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, plain.handle)
        yield plain, listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


GREETINGS = [pytest.param(b"220 ready\r\n", id="server-first"), pytest.param(b"", id="client-first")]


@pytest.mark.parametrize("greeting", GREETINGS)
async def test_a_plain_server_gets_nothing_but_the_stream(options: Options, greeting: bytes) -> None:
    """One connection, whose first bytes are the program's: as with mode "tcp", and each time."""
    options.said = None
    async with plain_server(greeting) as (plain, port):
        for _ in range(3):
            with anyio.fail_after(PATIENCE):
                async with aiordma.connect(LOCAL, port, config=STRICT) as stream:
                    assert stream.path == "tcp"
                    assert stream.fallback_reason is not None
                    assert stream.fallback_reason.code == Code.PLAIN_TCP_PEER
                    assert "SYN-ACK" in stream.fallback_reason.text
                    if greeting:
                        assert await stream.receive_exactly(len(greeting)) == greeting
                    await stream.send(b"hello")
                    assert await stream.receive_exactly(5) == b"hello"
        assert plain.received == [b"hello"] * 3


@pytest.mark.usefixtures("asyncio_only")
@pytest.mark.parametrize("greeting", GREETINGS)
async def test_the_same_by_asyncio_s_streams(options: Options, greeting: bytes) -> None:
    options.said = None
    async with plain_server(greeting) as (plain, port):
        async with asyncio.timeout(PATIENCE):
            reader, writer = await aiordma.open_connection(LOCAL, port, config=STRICT)
            if greeting:
                assert await reader.readexactly(len(greeting)) == greeting
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()
        assert plain.received == [b"hello"]


@pytest.fixture
def no_engine_yet(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As for the first connection of a loop, in a process that finds no device: how often it looked."""
    looked: list[int] = []

    async def find_engine(config: Config, waker: object = None) -> Any:
        looked.append(1)
        raise NegotiationError(Code.NO_DEVICE, "a test")

    monkeypatch.setattr(connect, "ready_engine", lambda _: None)
    monkeypatch.setattr(connect, "find_engine", find_engine)
    return looked


@pytest.mark.parametrize("greeting", GREETINGS)
async def test_no_device_is_opened_to_find_a_plain_server(
    options: Options, no_engine_yet: list[int], greeting: bytes
) -> None:
    options.said = None
    async with plain_server(greeting) as (plain, port):
        async with aiordma.connect(LOCAL, port, config=STRICT) as stream:
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.code == Code.PLAIN_TCP_PEER
            await stream.send(b"hello")
            assert await stream.receive_exactly(len(greeting) + 5) == greeting + b"hello"
        assert plain.received == [b"hello"]
        with pytest.raises(NegotiationError, match="SYN-ACK does not have"):
            await aiordma.connect(LOCAL, port, config=STRICT, mode="rdma")
    assert no_engine_yet == []


@pytest.mark.parametrize("said", [SynOption(), FROM_AIORDMA], ids=["kernel", "aiordma"])
async def test_without_a_device_nobody_is_left_waiting_for_clc(
    options: Options, no_engine_yet: list[int], said: SynOption
) -> None:
    """The connection whose SYN has asked carries no byte of the stream; the next one does not ask."""
    options.said = said
    async with plain_server(b"") as (plain, port):
        async with aiordma.connect(LOCAL, port, config=STRICT) as stream:
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.code == Code.NO_DEVICE
            await stream.send(b"hello")
            assert await stream.receive_exactly(5) == b"hello"
        assert sorted(plain.received) == [b"", b"hello"]
    assert no_engine_yet == [1]


async def test_mode_rdma_names_the_option(options: Options) -> None:
    options.said = None
    async with plain_server(b"") as (plain, port):
        with pytest.raises(NegotiationError, match="SYN-ACK does not have") as refused:
            await aiordma.connect(LOCAL, port, config=STRICT, mode="rdma")
        assert refused.value.code == Code.PLAIN_TCP_PEER
        assert b"".join(plain.received) == b""


@pytest.mark.parametrize("why", ["not strict", "not sent", "of this host"])
async def test_a_server_without_the_option_is_asked_all_the_same(
    options: Options, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Because it may be set up differently; because this process's SYNs do not ask, as beside the program's
    cgroup; or because it announces itself."""
    options.said, options.sent = None, why != "not sent"
    config = Config(device=DEVICE) if why == "not strict" else STRICT
    if why != "of this host":
        monkeypatch.setattr(connect, "announces_itself", lambda _: False)
    async with serving(config=WITHOUT) as listener:
        async with aiordma.connect(LOCAL, listener.port, config=config) as stream:
            assert (stream.path, stream.fallback_reason) == ("rdma", None)


async def test_an_aiordma_server_answers_and_is_believed(options: Options) -> None:
    options.said = FROM_AIORDMA
    async with serving(config=STRICT) as listener:
        async with aiordma.connect(LOCAL, listener.port, config=STRICT) as stream:
            assert stream.path == "rdma"


@pytest.mark.usefixtures("far")
@in_virtual_time
async def test_a_client_that_asked_by_its_syn_and_waited_for_another_one(options: Options) -> None:
    """Its connection was open and silent meanwhile, and is a plain one to the server by now."""
    options.said = None
    config = Config(device=DEVICE)
    paths, is_there = [], anyio.Event()
    async with serving(echo, config=config) as listener, anyio.create_task_group() as tasks:
        key = (LOCAL, listener.port, False)

        async def one() -> None:
            async with await aiordma.connect(LOCAL, listener.port, config=config) as stream:
                paths.append(stream.path)
            is_there.set()

        async with peer_cache.ask_alone(key):
            tasks.start_soon(one)
            await anyio.sleep(60)
            peer_cache.remember_clc(key)
        with anyio.fail_after(PATIENCE):
            await is_there.wait()
    assert paths == ["rdma"]


# ---- the server's role


async def greet(stream: RdmaStream) -> None:
    async with stream:
        await stream.send(b"220 ready\r\n")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have their time as those of other hosts do."""
    monkeypatch.setattr(first_bytes, "_is_near", lambda _: False)


@pytest.mark.usefixtures("far")
async def test_a_silent_client_without_the_option_is_greeted_at_once(options: Options) -> None:
    """The listener would wait for ever for its first bytes."""
    options.said = None
    async with serving(greet, config=STRICT) as listener:
        with anyio.fail_after(PATIENCE):
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                assert await client.receive() == b"220 ready\r\n"


@pytest.mark.usefixtures("far", "asyncio_only")
async def test_the_same_by_asyncio_s_servers(options: Options) -> None:
    def greet_it(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        writer.close()

    options.said = None
    server: Any = await aiordma.start_server(greet_it, LOCAL, 0, config=STRICT)
    async with server, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b"220 ready\r\n"
        writer.close()


@pytest.mark.usefixtures("far")
async def test_a_silent_client_with_aiordma_s_option_is_waited_for(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It will speak, however late."""
    waits, own = anyio.Event(), ClcIO.wait_readable

    async def wait_readable(io: ClcIO, deadline: float | None) -> bool:
        waits.set()
        return await own(io, deadline)

    monkeypatch.setattr(ClcIO, "wait_readable", wait_readable)
    options.said = SynOption(1)
    async with serving(greet, config=STRICT) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            with anyio.fail_after(PATIENCE):
                await waits.wait()
            await client.send(b"hello")
            with anyio.fail_after(PATIENCE):
                assert await client.receive() == b"220 ready\r\n"


async def test_a_silent_client_of_this_host_is_waited_for_while_it_says_so(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot use the map, perhaps."""
    options.said = None
    async with serving(greet, config=STRICT) as listener:
        with announcement.arriving([(socket.AF_INET, (LOCAL, listener.port))]):
            async with aiordma.connect(LOCAL, listener.port, config=WITHOUT) as stream:
                assert stream.path == "rdma"
                assert await stream.receive_exactly(11) == b"220 ready\r\n"
        monkeypatch.setattr(first_bytes, "_NEAR_S", FOREVER)
        with anyio.fail_after(PATIENCE):
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                assert await client.receive() == b"220 ready\r\n"


@pytest.mark.usefixtures("far")
async def test_a_proposal_behind_the_verdict_falls_back(options: Options) -> None:
    """A client without the set-up, to a server that is strict: TCP, and none of it reaches a program."""
    options.said = None
    async with serving(config=STRICT) as listener:
        async with aiordma.connect(LOCAL, listener.port, config=WITHOUT) as stream:
            await stream.send(b"hello")
            assert await stream.receive_exactly(5) == b"hello"


# ---- tickets, and programs that ask first


async def test_connections_on_tickets_ask_too(options: Options) -> None:
    """Else a strict server would take such a client, which is silent at first, for a plain one."""
    options.said = FROM_AIORDMA
    asked: list[int] = []
    own = options.want
    options.want = lambda sock: (asked.append(1), own(sock))[1]  # type: ignore[method-assign,func-returns-value]
    async with serving(config=STRICT) as listener:
        engine = await links_engine.current(STRICT)
        for number in range(1, 4):
            async with aiordma.connect(LOCAL, listener.port, config=STRICT) as stream:
                assert stream.path == "rdma"
                await stream.send(b"hello")
                assert await stream.receive_exactly(5) == b"hello"
            assert len(asked) == number + 1  # and the listener
        assert engine.early_servers
    before = len(asked)
    async with plain_server(b"") as (plain, port):
        options.said = None
        async with aiordma.connect(LOCAL, port, config=STRICT) as stream:
            await stream.send(b"hello")
            assert await stream.receive_exactly(5) == b"hello"
        assert plain.received == [b"hello"]
    assert len(asked) == before + 1


@pytest.fixture
def by_environment(options: Options, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    monkeypatch.setenv("AIORDMA_SMCR", "/a/map")
    monkeypatch.setattr("aiordma.negotiation.smc_option.of_setting", lambda _: options)
    yield options
    of_setting.cache_clear()


@pytest.mark.parametrize("strict", ["0", "1"])
async def test_a_program_that_asks_first_sends_nothing_either(
    by_environment: Options, monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    monkeypatch.setenv("AIORDMA_SMCR_STRICT", strict)
    by_environment.said = None
    with socket.create_server((LOCAL, 0)) as server:
        addresses = [(int(socket.AF_INET), server.getsockname())]
        answer = await anyio.to_thread.run_sync(ask, addresses, 50)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE)
            received = connection.recv(4096)
    if strict == "1":
        assert (answer, received) == (Answer.NO_OPTION, b"")
    else:
        assert answer is Answer.SILENT
        assert received


async def test_a_program_that_asks_first_believes_the_syn_ack(by_environment: Options) -> None:
    by_environment.said = FROM_AIORDMA
    with socket.create_server((LOCAL, 0)) as server:
        addresses = [(int(socket.AF_INET), server.getsockname())]
        assert await anyio.to_thread.run_sync(ask, addresses, FOREVER) is Answer.NEGOTIATES
