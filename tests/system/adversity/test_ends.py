"""However a process ends, its peers get what plain asyncio on TCP would have left them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.channels import channel
from tests.loops import LOOPS
from tests.pipes.channel_ends import End
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.program import Control

HERE = "tests.system.adversity.test_ends"

#: What is written before the end, in one turn of the loop.
PLANS = {
    "one": [b"h" * 1000],
    "head and body": [b"h" * 100, b"b" * 3000],
    "a ring": [b"r" * 60_000],
    "many": [bytes([n]) * 50 for n in range(40)],
}
#: How the process ends then, and its exit status.
ENDS: dict[str, int] = {
    "return": 0,
    "raise": 1,
    "sys.exit": 3,
    "os._exit": 4,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
}


def end(how: str) -> None:
    if how == "raise":
        raise ValueError("the end")
    if how == "sys.exit":
        sys.exit(ENDS[how])
    if how == "os._exit":
        os._exit(ENDS[how])
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))


# ---- processes that end: (surface, role) -> the function to write with


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)  # type: ignore[arg-type]


#: What would otherwise be closed by its finalizer before the end.
_kept: list[object] = []


async def _streams(control: Control, port: int | None, module: Any) -> asyncio.StreamWriter:
    if port is not None:
        pair = await module.open_connection(LOCAL, port)
    else:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def serve(*pair: Any) -> None:
            accepted.set_result(pair)
            await asyncio.Event().wait()

        server = await module.start_server(serve, LOCAL, 0)
        _kept.append(server)
        control.say(port_of(server))
        pair = await accepted
    _kept.append(pair)
    writer: asyncio.StreamWriter = pair[1]
    return writer


async def _transport(control: Control, port: int | None) -> asyncio.Transport:
    if port is not None:
        return (await aiordma.create_connection(_Protocol, LOCAL, port))[0]
    protocol = _Protocol()
    server = await aiordma.create_server(lambda: protocol, LOCAL, 0)
    _kept.append(server)
    control.say(port_of(server))
    return await protocol.made


async def _stream(control: Control, port: int | None) -> aiordma.RdmaStream:
    if port is not None:
        return await aiordma.connect(LOCAL, port)
    listener = await aiordma.listen(LOCAL)
    _kept.append(listener)
    control.say(listener.port)
    return await listener.accept()


async def _trio(control: Control, port: int | None) -> Any:
    import trio

    aiordma.install()
    if port is not None:
        return await trio.open_tcp_stream(LOCAL, port)
    (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
    _kept.append(listener)
    control.say(listener.socket.getsockname()[1])
    return await listener.accept()


async def ending(control: Control, surface: str, plan: str, how: str, port: int | None = None) -> None:
    """Writes, and ends as it is told, without closing anything. A server says its port first."""
    if surface in ("plain", "streams"):
        writer = await _streams(control, port, asyncio if surface == "plain" else aiordma)
        await control.hear()
        for piece in PLANS[plan]:
            writer.write(piece)
        await writer.drain()
    elif surface == "transport":
        transport = await _transport(control, port)
        _kept.append(transport)
        await control.hear()
        for piece in PLANS[plan]:
            transport.write(piece)
    elif surface == "channels":
        assert port is not None
        connected = await channel.connect(LOCAL, port)
        _kept.append(connected)
        await control.hear()
        for piece in PLANS[plan]:
            assert connected.channel.try_send(b"", piece)
    else:
        stream: Any = await (_trio if surface == "trio" else _stream)(control, port)
        _kept.append(stream)
        await control.hear()
        for piece in PLANS[plan]:
            await (stream.send_all if surface == "trio" else stream.send)(piece)
    end(how)


# ---- what its peer gets


async def _of_plain(reader: asyncio.StreamReader) -> tuple[int, str]:
    got = 0
    try:
        while part := await reader.read(1 << 16):
            got += len(part)
    except ConnectionError:
        return got, "reset"
    return got, "end"


async def _of_stream(stream: aiordma.RdmaStream) -> tuple[int, str]:
    got = 0
    async with stream:
        try:
            async for part in stream:
                got += len(part)
        except anyio.BrokenResourceError:
            return got, "reset"
    return got, "end"


async def left_by(
    surface: str, role: str, plan: str, how: str, loop: str = "asyncio", unread: bytes = b""
) -> tuple[int, str]:
    """How many bytes, and which end, a process leaves to its peer.

    :param unread: what the peer has sent, and the process never reads.
    """
    arguments: dict[str, Any] = {"surface": surface, "plan": plan, "how": how}
    with anyio.fail_after(PATIENCE):
        if surface == "plain":
            return await _left_by_plain(role, loop, arguments)
        async with contextlib.AsyncExitStack() as stack:
            if role == "client":
                listener = await stack.enter_async_context(await aiordma.listen(LOCAL))
                victim = stack.enter_context(victim_of(how, loop, {**arguments, "port": listener.port}))
                stream = await listener.accept()
            else:
                victim = stack.enter_context(victim_of(how, loop, arguments))
                stream = await aiordma.connect(LOCAL, await victim.heard(), mode="rdma")
            assert stream.path == "rdma"
            if unread:
                await stream.send(unread)
            victim.say("go")
            return await _of_stream(stream)


async def _left_by_plain(role: str, loop: str, arguments: dict[str, Any]) -> tuple[int, str]:
    how = arguments["how"]
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def serve(*pair: Any) -> None:
        accepted.set_result(pair)

    async with contextlib.AsyncExitStack() as stack:
        if role == "client":
            server = await stack.enter_async_context(await asyncio.start_server(serve, LOCAL, 0))
            victim = stack.enter_context(victim_of(how, loop, {**arguments, "port": port_of(server)}))
            reader, writer = await accepted
        else:
            victim = stack.enter_context(victim_of(how, loop, arguments))
            reader, writer = await asyncio.open_connection(LOCAL, await victim.heard())
        victim.say("go")
        result = await _of_plain(reader)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return result


@contextlib.contextmanager
def victim_of(how: str, loop: str, arguments: dict[str, Any]) -> Iterator[Any]:
    with process(f"{HERE}:ending", loop, **arguments) as victim:
        victim.expect(ENDS[how])
        yield victim


WAYS = pytest.mark.parametrize("how", ENDS)
ROLES = pytest.mark.parametrize("role", ["client", "server"])


@pytest.fixture
def anyio_backend() -> object:
    """The process that ends has every loop; its peer one, on which plain asyncio can be the reference."""
    return LOOPS["asyncio"]


@pytest.mark.anyio
@ROLES
@WAYS
async def test_as_plain_asyncio(how: str, role: str) -> None:
    for plan, pieces in PLANS.items():
        expected = sum(map(len, pieces)), "end"
        assert await left_by("plain", role, plan, how) == expected
        for surface in ("streams", "transport", "stream"):
            assert await left_by(surface, role, plan, how) == expected, (surface, plan)


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("loop", [name for name in LOOPS if name != "asyncio"])
async def test_on_other_loops(how: str, loop: str) -> None:
    assert await left_by("stream", "client", "head and body", how, loop) == (3100, "end")
    assert await left_by("stream", "server", "one", how, loop) == (1000, "end")
    assert await left_by("stream", "client", "many", how, loop) == (2000, "end")


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize(("surface", "role"), [("streams", "client"), ("transport", "server")])
async def test_asyncio_s_surface_on_uvloop(surface: str, role: str, how: str) -> None:
    """What uvloop's own transports on TCP leave, too."""
    assert await left_by(surface, role, "many", how, "asyncio+uvloop") == (2000, "end")


@pytest.mark.anyio
@ROLES
@WAYS
async def test_sockets_of_trio(how: str, role: str) -> None:
    assert await left_by("trio", role, "head and body", how, "trio") == (3100, "end")


@pytest.mark.anyio
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@WAYS
async def test_messages_of_a_channel(how: str, loop: str) -> None:
    """Each arrives, and then the end shows."""
    async with await channel.listen(LOCAL) as listener:
        arguments = {"surface": "channels", "plan": "many", "how": how, "port": listener.port}
        with victim_of(how, loop, arguments) as victim, anyio.fail_after(PATIENCE):
            async with await listener.accept() as connected:
                end_here = End(connected.channel, keeps_views=False)
                victim.say("go")
                await end_here.ended()
                assert end_here.messages == PLANS["many"]


@pytest.mark.anyio
@ROLES
@WAYS
async def test_what_was_not_read_resets(how: str, role: str) -> None:
    """As TCP does, whose peers may lose what was sent by that; here they do not."""
    assert await left_by("stream", role, "one", how, unread=b"x" * 300) == (1000, "reset")


ASKED = [b"a" * 300, b"b" * 5]


class _Reading(_Protocol):
    def __init__(self) -> None:
        super().__init__()
        self.left = sum(map(len, ASKED))
        self.read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if not self.left:
            self.read.set_result(None)


async def reading(control: Control, surface: str, port: int) -> None:
    """Reads all that comes, answers nothing, says so, and waits to be killed."""
    size = sum(map(len, ASKED))
    if surface in ("plain", "streams"):
        opened = await (asyncio if surface == "plain" else aiordma).open_connection(LOCAL, port)
        await opened[0].readexactly(size)
    elif surface in ("transport", "plain transport"):
        if surface == "transport":
            opened = await aiordma.create_connection(_Reading, LOCAL, port)
        else:
            opened = await asyncio.get_running_loop().create_connection(_Reading, LOCAL, port)
        await opened[1].read
    else:
        opened = await aiordma.connect(LOCAL, port)
        await opened.receive_exactly(size)
    _kept.append(opened)
    control.say("read")
    await anyio.sleep_forever()


@pytest.mark.anyio
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("surface", ["plain", "plain transport", "streams", "transport", "stream"])
async def test_what_was_read_leaves_an_end(surface: str, loop: str) -> None:
    """Although the process that is killed has not told how far it has read: nothing asked for that."""
    if loop == "trio" and surface != "stream":
        pytest.skip("asyncio's surface")
    async with await aiordma.listen(LOCAL) as listener:
        with (
            process(f"{HERE}:reading", loop, port=listener.port, surface=surface) as victim,
            anyio.fail_after(PATIENCE),
        ):
            stream = await listener.accept()
            for piece in ASKED:
                await stream.send(piece)
            assert await victim.heard() == "read"
            victim.kill()
            got = await _of_stream(stream)
    assert got == (0, "end")


SLOW = 2_000_000


async def blocked(control: Control, port: int, surface: str, how: str) -> None:
    """When it is told to, accepts more than the peer's ring takes, says so, and ends as it was asked to."""
    if surface == "transport":
        transport = await _transport(control, port)
        _kept.append(transport)
        await control.hear()
        transport.write(b"s" * SLOW)
    else:
        stream = await _stream(control, port)
        _kept.append(stream)
        await control.hear()
        stream.send_soon(b"s" * SLOW)
    control.say("accepted")
    end(how)


@pytest.mark.anyio
@pytest.mark.parametrize("surface", ["transport", "stream"])
@pytest.mark.parametrize(("how", "whole"), [("return", True), ("sys.exit", True), ("SIGKILL", False)])
async def test_what_waits_for_room(surface: str, how: str, whole: bool) -> None:
    """It arrives after an end that runs code, if the peer reads; otherwise its loss shows."""
    async with await aiordma.listen(LOCAL) as listener:
        with (
            process(f"{HERE}:blocked", port=listener.port, surface=surface, how=how) as victim,
            anyio.fail_after(PATIENCE),
        ):
            victim.expect(ENDS[how])
            stream = await listener.accept()
            victim.say("begin")  # a client that is killed before the server has accepted it is not accepted
            await victim.heard()
            got = await _of_stream(stream)
    assert got == (SLOW, "end") if whole else got[0] < SLOW and got[1] == "reset"


async def stubborn(control: Control, port: int) -> None:
    transport = await _transport(control, port)
    transport.write(b"s" * SLOW)
    control.say("accepted")


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_peer_that_never_reads_does_not_keep_a_process() -> None:
    async with await aiordma.listen(LOCAL) as listener:
        with process(f"{HERE}:stubborn", port=listener.port) as victim:
            stream = await listener.accept()
            await victim.heard()
            await anyio.to_thread.run_sync(victim.wait)
            got, how = await _of_stream(stream)
    assert 0 < got < SLOW
    assert how == "reset"


async def answering(control: Control, how: str, size: int) -> None:
    """Answers a call, and ends in the next turn of the loop."""
    ended = anyio.Event()
    service = rpc.Service("test")

    @service.method
    async def answer(data: bytes) -> bytes:
        asyncio.get_running_loop().call_soon(ended.set)
        return data * size

    block = rpc.serve(service, LOCAL, 0)
    server = await block.__aenter__()
    _kept.append(block)
    control.say(server.port)
    await ended.wait()
    end(how)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("how", "size"), [("return", 1), ("return", 1_000_000), ("os._exit", 1), ("SIGKILL", 1)]
)
async def test_an_answer_that_was_sent_arrives(how: str, size: int) -> None:
    with process(f"{HERE}:answering", how=how, size=size) as victim, anyio.fail_after(PATIENCE):
        victim.expect(ENDS[how])
        async with rpc.connect(LOCAL, await victim.heard(), mode="rdma") as client:
            assert await client.call("test.answer", b"a", returns=bytes) == b"a" * size
            await anyio.to_thread.run_sync(victim.wait)
            with pytest.raises(rpc.RpcError) as caught:
                await client.call("test.answer", b"a", returns=bytes)
            assert caught.value.code is rpc.Code.UNAVAILABLE
