"""What fails keeps no view of the user's buffer: an error that is logged later holds its traceback, and each
frame there its variables. A bytearray of which there is a view cannot be resized or cleared.

(The buffer itself may be kept, as it is by every function that got it.)
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel as channels
from aiordma.errors import RemoteProtocolError
from aiordma.links import engine as engines
from aiordma.testing.rpc import rpc_pair
from tests.datagrams.pairs import MAKERS as DATAGRAMS
from tests.health import until
from tests.loops import LOOPS
from tests.memory.pairs import PATHS, config_of
from tests.memory.pairs import pair as memory_pair
from tests.roles import LOCAL, port_of
from tests.streams.pairs import MAKERS

pytestmark = pytest.mark.anyio

#: More than fits anywhere.
LARGE = 24_000_000
STREAMS = {name: MAKERS[name] for name in ("memory", "tcp", "tcp, interpreted", "rdma", "tls", "carried")}
NOW = ("send_nowait", "send_soon", "send_soon of several")
RECEIVES = ("receive_into", "receive_exactly_into")
WAITING = ("busy", "cancelled", "aborted meanwhile", "closed meanwhile")


@pytest.fixture(params=["asyncio-bytearray", "asyncio-view", "trio-view"])
def case(request: pytest.FixtureRequest) -> str:
    """What differs between loops is in tasks and waiters, and uvloop has asyncio's."""
    return str(request.param)


@pytest.fixture
def anyio_backend(case: str) -> Any:
    return LOOPS[case.partition("-")[0]]


@pytest.fixture
def kind(case: str) -> str:
    """How the buffer is passed."""
    return case.partition("-")[2]


class Given:
    """A buffer, as a program passes it, and the errors that it got."""

    def __init__(self, kind: str, size: int) -> None:
        self.data = bytearray(size)
        self.passed: Any = self.data if kind == "bytearray" else memoryview(self.data)
        self.errors: list[BaseException] = []

    @contextlib.asynccontextmanager
    async def failing(self) -> Any:
        try:
            yield
        except BaseException as error:
            self.errors.append(error)
            if not isinstance(error, Exception):
                raise

    def check(self) -> None:
        """The errors are kept, and the program's own view has gone."""
        for error in self.errors:
            if isinstance(error, aiordma.IncompleteRead) and isinstance(error.partial, memoryview):
                error.partial.release()  # the program's, too
        if self.passed is not self.data:
            self.passed.release()
        self.data.clear()


async def call(stream: Any, operation: str, buffer: Any) -> None:
    if operation == "send_soon of several":
        stream.send_soon([b"first", buffer])
        return
    result = getattr(stream, operation)(buffer)
    if hasattr(result, "__await__"):
        await result


def lost(one: Any) -> bool:
    """Whether it knows that the peer has gone. On TCP, reading shows it."""
    try:
        one.receive_nowait()
    except anyio.WouldBlock:
        return bool(one.closed)
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        return True
    return False


async def fail(one: Any, other: Any, way: str, operation: str, given: Given) -> None:
    """Have the operation fail in this way, and keep the errors."""
    if way == "closed":
        await one.aclose()
    elif way == "ended":
        await one.send_eof()
    elif way == "aborted":
        other.abort()
        await until(lambda: lost(one))
    if way not in WAITING:
        async with given.failing():
            await call(one, operation, given.passed)
        return
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            async with given.failing():
                while True:  # there may be more room by now
                    await call(one, operation, given.passed)

        tasks.start_soon(run)
        await until(lambda: one.in_use)
        if way == "busy":
            second = Given("view", 100)
            async with second.failing():
                await call(one, operation, second.passed)
            assert second.errors
            second.check()
        if way == "aborted meanwhile":
            other.abort()
        elif way == "closed meanwhile":
            one.abort()
        else:
            tasks.cancel_scope.cancel()


async def end(*streams: Any) -> None:
    for stream in streams:
        stream.abort()
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("operation", ["send", *RECEIVES])
@pytest.mark.parametrize("way", ["closed", "ended", "aborted", *WAITING])
@pytest.mark.parametrize("maker", STREAMS)
async def test_streams(maker: str, way: str, operation: str, kind: str) -> None:
    one, other = await STREAMS[maker]()
    if way == "ended":
        if operation != "send":
            one, other = other, one
            await other.send(b"only this")
            await other.send_eof()
            way = "at its end"
    given = Given(kind, LARGE if operation == "send" else 100_000)
    try:
        await fail(one, other, way, operation, given)
        if way == "at its end":
            async with given.failing():
                await call(one, operation, given.passed)
        assert given.errors
        given.check()
    finally:
        await end(one, other)


@pytest.mark.parametrize("operation", NOW)
@pytest.mark.parametrize("way", ["closed", "ended", "aborted", "full", "lost"])
@pytest.mark.parametrize("maker", STREAMS)
async def test_streams_without_waiting(maker: str, way: str, operation: str, kind: str) -> None:
    one, other = await STREAMS[maker]()
    given = Given(kind, 100_000)
    try:
        if way == "full":
            one.send_soon(bytes(LARGE))
            one.send_soon_limit = 1
            async with given.failing():
                await call(one, operation, given.passed)
            assert given.errors
        elif way == "lost":
            one.send_soon(bytes(LARGE))
            async with given.failing():
                await call(one, operation, given.passed)
            other.abort()
            await until(lambda: lost(one))
            with contextlib.suppress(anyio.BrokenResourceError):
                await one.flush()
        else:
            await fail(one, other, way, operation, given)
        given.check()
    finally:
        await end(one, other)


@pytest.mark.parametrize("way", ["closed", "ended", "aborted", "too long", *WAITING])
@pytest.mark.parametrize("maker", DATAGRAMS)
async def test_datagram_connections(maker: str, way: str, kind: str) -> None:
    one, other = await DATAGRAMS[maker]()
    size = one.max_message_bytes + 1 if way == "too long" else 16_000
    try:
        if way in WAITING:
            filler = bytes(16_000)
            with contextlib.suppress(anyio.WouldBlock):
                while True:
                    one.send_nowait(filler)
        for operation in ("send", "send_nowait", "send_soon", "send_soon of several", "send_many"):
            given = Given(kind, size)
            if operation == "send_many":
                given.passed, passed = [given.passed], given.passed
            if way in WAITING and operation != "send":
                continue
            await fail(one, other, way, operation, given)
            if operation == "send_many":
                given.passed = passed
            assert given.errors, operation
            given.check()
    finally:
        await end(one, other)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_channels(mode: Any, kind: str) -> None:
    async with await channels.listen(LOCAL) as listener:
        one = await channels.connect(LOCAL, listener.port, mode=mode)
        other = await listener.accept()
        long = Given(kind, one.channel.max_message_bytes + 1)
        for use in (lambda: one.channel.try_send(b"head", long.passed), lambda: one.send_soon(long.passed)):
            async with long.failing():
                use()
        assert len(long.errors) == 2
        long.check()
        waiting = Given(kind, 100_000)
        while one.channel.try_send(b"", bytes(100_000)):
            pass
        one.send_soon(waiting.passed)
        other.abort()
        one.abort()
        waiting.check()
        over = Given(kind, 100_000)
        for use in (lambda: one.channel.try_send(b"head", over.passed), lambda: one.send_soon(over.passed)):
            async with over.failing():
                use()
        assert len(over.errors) == 2
        over.check()


@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_datagram_endpoints(mode: Any, kind: str) -> None:
    one = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode)
    other = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode)
    await one.resolve(other.local_address)
    where = other.local_address
    for size in (one.max_message_bytes + 1, 100):
        if size == 100:
            await one.aclose()
        given = Given(kind, size)
        async with given.failing():
            await one.send((given.passed, where))
        async with given.failing():
            one.send_nowait((given.passed, where))
        assert len(given.errors) == 2
        given.check()
    await other.aclose()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", ["wrong length", "revoked", "closed", "cancelled"])
async def test_memory(way: str, path: str, kind: str) -> None:
    size = 1 << 20
    async with memory_pair(path) as (client, _), await memory.alloc(size, config=config_of(path)) as region:
        remote = await client.open(region.descriptor())
        if way == "revoked":
            await remote.aclose()
        elif way == "closed":
            await client.aclose()
        for operation in ("read", "write"):
            for several in (False, True):
                given = Given(kind, size + (way == "wrong length"))
                passed = [given.passed] if several else given.passed
                await refused(given, getattr(remote, operation), passed, cancelled=way == "cancelled")
                del passed
                given.check()


async def refused(given: Given, operation: Any, passed: Any, *, cancelled: bool) -> None:
    with anyio.CancelScope() as scope:
        if cancelled:
            scope.cancel()
        async with given.failing():
            await operation(passed)
    assert given.errors


@pytest.mark.parametrize("way", ["fails", "cancelled", "closed"])
async def test_calls(way: str, kind: str) -> None:
    """With a large argument, and with memory for the result."""
    service = rpc.Service("t")

    @service.method
    async def take(data: Any) -> bytes:
        if way == "cancelled":
            await anyio.sleep_forever()
        raise rpc.RpcError(rpc.Code.NOT_FOUND, "no")

    @service.method
    async def give() -> bytes:
        if way == "cancelled":
            await anyio.sleep_forever()
        return bytes(200_000)

    async with rpc_pair(service) as pair:
        client = pair.client
        if way == "closed":
            await client.aclose()
        for name, size in (("take", 200_000), ("give", 100_000)):
            given = Given(kind, size)
            with anyio.CancelScope() as scope:
                async with given.failing(), anyio.create_task_group() as tasks:
                    if way == "cancelled":
                        tasks.start_soon(cancel_later, scope)
                    if name == "take":
                        await client.call("t.take", given.passed)
                    else:
                        await client.call("t.give", into=given.passed)
            assert given.errors
            given.check()


async def cancel_later(scope: anyio.CancelScope) -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def break_links() -> None:
    """In a way that nothing outlives."""
    for group in list((await engines.current()).all_groups):
        group.link.queue_pair.break_link(RemoteProtocolError("broken by the test"))


class Keeping(asyncio.Protocol):
    """Keeps why its connection was lost."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.lost = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.given.errors.append(exc)
        self.lost.set()


@pytest.mark.parametrize("operation", ["write", "writelines"])
@pytest.mark.parametrize("way", ["broken", "queued", "no bytes"])
async def test_transports(way: str, operation: str, kind: str, case: str) -> None:
    if case.startswith("trio"):
        pytest.skip("trio has no transports")
    given = Given(kind, 1 << 20)
    theirs: list[Keeping] = []

    def accepted() -> Keeping:
        theirs.append(Keeping(Given("bytearray", 1)))
        return theirs[-1]

    server: Any = await aiordma.create_server(accepted, LOCAL, 0, mode="rdma")
    port = port_of(server)
    transport, mine = await aiordma.create_connection(lambda: Keeping(given), LOCAL, port, mode="rdma")
    assert isinstance(mine, Keeping)
    await until(lambda: bool(theirs and theirs[0].transport))
    theirs[0].transport.pause_reading()
    passed = [b"first", given.passed] if operation == "writelines" else given.passed
    if way == "no bytes":
        some: list[Any] = [given.passed, "no bytes"]
        async with given.failing():
            transport.writelines(some)
        del some
    elif way == "queued":
        for _ in range(20):
            getattr(transport, operation)(passed)
        await break_links()
    else:
        await break_links()
        while not mine.lost.is_set():
            getattr(transport, operation)(passed)
            await asyncio.sleep(0)
    if way != "no bytes":
        await mine.lost.wait()
    assert given.errors
    del passed
    given.check()
    for end_of_it in (mine, theirs[0]):
        end_of_it.transport.abort()
        await end_of_it.lost.wait()
    server.close()
    await server.wait_closed()
