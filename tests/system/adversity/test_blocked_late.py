"""A process that blocks its loop after many writes of one turn: each of them arrives, as on TCP."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from aiordma.errors import Code
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.system.adversity.test_blocked import block
from tests.system.adversity.test_ends import _kept, _Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program import Control

HERE = "tests.system.adversity.test_blocked_late"
MANY = [bytes([n]) * 50 for n in range(40)]
#: What is written in each turn of the loop; it is blocked in the last one.
PLANS: dict[str, list[list[bytes]]] = {
    "many": [MANY],
    # After a turn like that, only the first write of the next one is announced at once.
    "a head and its body after many": [MANY, [b"head" * 50, b"body" * 1000]],
}


@pytest.fixture
def anyio_backend() -> object:
    """The process that blocks has every loop, its peer one."""
    return LOOPS["asyncio"]


async def _writer(control: Control, surface: str, port: int, mode: Any) -> Callable[[bytes], Any]:
    """A function that writes a piece; what it returns may have to be awaited."""
    if surface == "trio socket":
        import trio

        aiordma.install()
        opened = await trio.open_tcp_stream(LOCAL, port)
        _kept.append(opened)
        send_all: Callable[[bytes], Any] = opened.send_all
        return send_all
    if surface == "streams":
        pair = await aiordma.open_connection(LOCAL, port, mode=mode)
        _kept.append(pair)
        return pair[1].write
    if surface in ("transport", "writelines"):
        transport, _ = await aiordma.create_connection(_Protocol, LOCAL, port, mode=mode)
        _kept.append(transport)
        return transport.write if surface == "transport" else lambda piece: transport.writelines([piece, b""])
    if surface == "datagrams":
        connection = await connect_datagram(LOCAL, port, mode=mode)
        _kept.append(connection)
        return connection.send
    stream = await aiordma.connect(LOCAL, port, mode=mode)
    _kept.append(stream)
    if surface == "stream off RDMA":
        assert stream._pipe.leave(Code.SWITCHED)  # type: ignore[attr-defined]
        while stream.path == "rdma":
            await anyio.lowlevel.checkpoint()
    return stream.send_soon if surface == "send_soon" else stream.send


def compute(control: Control) -> None:
    """Until the test says something. Other threads get Python's lock at its usual interval only."""
    while not select.select([control._reads], [], [], 0)[0]:
        for _ in range(10_000):
            pass


WAYS = {"block": block, "compute": compute}


async def blocking(control: Control, surface: str, plan: str, port: int, mode: Any, way: str) -> None:
    write = await _writer(control, surface, port, mode)
    for pieces in PLANS[plan]:
        for piece in pieces:
            written = write(piece)
            if written is not None:
                await written
        if pieces is not PLANS[plan][-1]:
            control.say("turn")
            await control.hear()
    WAYS[way](control)


SURFACES = [
    *[(surface, loop) for surface in ("stream", "send_soon", "datagrams") for loop in LOOPS],
    *[(surface, "asyncio") for surface in ("streams", "transport", "writelines", "stream off RDMA")],
    *[(surface, "asyncio+uvloop") for surface in ("streams", "transport", "writelines")],
    ("trio socket", "trio"),
]


async def check(surface: str, loop: str, mode: str, plan: str, way: str) -> None:
    """Everything arrives while the loop is blocked."""
    listen: Any = listen_datagram if surface == "datagrams" else aiordma.listen
    async with await listen(LOCAL) as listener:
        arguments = {"surface": surface, "plan": plan, "port": listener.port, "mode": mode, "way": way}
        with process(f"{HERE}:blocking", loop, **arguments) as sender, anyio.fail_after(PATIENCE):
            async with await listener.accept() as connection:
                for pieces in PLANS[plan]:
                    if surface == "datagrams":
                        assert [await connection.receive() for _ in pieces] == pieces
                    else:
                        whole = b"".join(pieces)
                        assert await connection.receive_exactly(len(whole)) == whole
                    if pieces is not PLANS[plan][-1]:
                        assert await sender.heard() == "turn"
                        sender.say("go on")
                assert connection.path == ("tcp" if surface == "stream off RDMA" else mode)
                sender.say("go on")


@pytest.mark.anyio
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("surface", "loop"), SURFACES)
async def test_what_was_written_arrives(surface: str, loop: str, plan: str) -> None:
    await check(surface, loop, "rdma", plan, "block")


@pytest.mark.anyio
@pytest.mark.parametrize("surface", ["streams", "transport", "stream", "send_soon", "datagrams"])
async def test_on_tcp(surface: str) -> None:
    await check(surface, "asyncio", "tcp", "many", "block")


@pytest.mark.anyio
@pytest.mark.parametrize("surface", ["streams", "stream", "datagrams"])
async def test_while_it_computes(surface: str) -> None:
    await check(surface, "asyncio", "rdma", "a head and its body after many", "compute")
