"""The end of a stream without waiting: abort(), closed, at_eof, and callbacks on close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma import wake
from aiordma.config import Config
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.health import until
from tests.streams.pairs import Pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma.config import Mode
    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio


async def receive_until_lost(stream: RdmaStream) -> None:
    with pytest.raises(anyio.BrokenResourceError):
        async for _ in stream:
            pass


async def test_abort_gives_the_peer_an_error_at_once(pair: Pair) -> None:
    one, other = pair
    await one.send(b"perhaps")
    one.abort()
    one.abort()  # idempotent
    assert one.closed
    assert one.at_eof
    with pytest.raises(anyio.ClosedResourceError):
        await one.send(b"x")
    with pytest.raises(anyio.ClosedResourceError):
        await one.receive()
    await receive_until_lost(other)
    assert other.closed
    await one.aclose()


async def test_abort_from_a_callback_of_the_loop_ends_tasks_that_wait(pair: Pair) -> None:
    one, _ = pair

    async def wait_for_data() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await one.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_data)
        await anyio.wait_all_tasks_blocked()
        wake.current().call_soon(one.abort)


async def test_a_send_to_a_closed_peer_leaves_what_it_sent(pair: Pair) -> None:
    """And to send nothing is no error, as on TCP."""
    one, other = pair
    await other.send(b"no, thank you")
    await other.aclose()

    async def send_on() -> None:
        while True:
            await one.send(b"more")

    with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
        await send_on()
    for empty in (b"", bytearray(), memoryview(b"")):
        await one.send(empty)
    assert await one.receive() == b"no, thank you"
    with pytest.raises(anyio.EndOfStream):
        await one.receive()
    await one.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await one.send(b"")


async def test_the_end_shows_without_reading(pair: Pair) -> None:
    one, other = pair
    assert not other.closed
    assert not other.at_eof
    await one.send(b"last")
    await one.send_eof()
    await until(lambda: other._pipe.readable or other.path == "tcp")
    assert not other.at_eof  # there is something to receive
    assert await other.receive() == b"last"
    await until(lambda: other.at_eof)
    assert not other.closed  # it may still send
    assert not one.at_eof
    await other.send(b"answer")
    assert await one.receive() == b"answer"


async def test_close_callbacks_come_once_and_can_be_removed(pair: Pair) -> None:
    one, other = pair
    calls: list[tuple[str, RdmaStream]] = []

    def first(stream: RdmaStream) -> None:
        calls.append(("first", stream))

    def removed(stream: RdmaStream) -> None:
        calls.append(("removed", stream))

    def failing(stream: RdmaStream) -> None:
        raise ValueError("on purpose")

    one.add_close_callback(removed)
    one.add_close_callback(failing)
    one.add_close_callback(first)
    assert one.remove_close_callback(removed) == 1
    assert one.remove_close_callback(removed) == 0
    one.remove_close_callback(failing)
    await one.send(b"x")
    assert await other.receive() == b"x"
    assert not calls
    one.abort()
    assert not calls  # by the loop, not inside abort()
    await until(lambda: calls)
    await one.aclose()
    one.add_close_callback(first)  # it is closed: soon
    await until(lambda: len(calls) == 2)
    assert calls == [("first", one), ("first", one)]


async def test_a_close_callback_learns_of_a_loss_while_no_task_receives(pair: Pair) -> None:
    one, other = pair
    lost: list[RdmaStream] = []
    other.add_close_callback(lost.append)
    one.abort()
    await until(lambda: lost)
    assert lost == [other]
    assert other.closed


async def test_a_close_callback_learns_of_a_loss_while_a_task_receives(pair: Pair) -> None:
    one, other = pair
    lost: list[RdmaStream] = []
    other.add_close_callback(lost.append)

    async def read() -> None:
        with pytest.raises(anyio.BrokenResourceError):
            await other.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        one.abort()
    await until(lambda: lost)
    assert lost == [other]


async def test_a_close_callback_does_not_keep_a_dropped_stream(pair: Pair) -> None:
    one, other = await _another_pair()
    other.add_close_callback(lambda stream: None)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del other
    with pytest.raises(anyio.EndOfStream):
        await one.receive()
    await one.aclose()


async def _another_pair() -> Pair:
    async with await listen("127.0.0.1", config=Config(device=DEVICE), mode="auto") as listener:
        one = await connect("127.0.0.1", listener.port, config=Config(device=DEVICE))
        return one, await listener.accept()


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_listener_closes_without_waiting(mode: Mode) -> None:
    config = Config(device=DEVICE, server_first_wait_ms=0)
    listener = await listen("127.0.0.1", config=config, mode=mode)
    accepted = await connect("127.0.0.1", listener.port, config=config, mode=mode)
    mine = await listener.accept()
    waiting = await connect("127.0.0.1", listener.port, config=config, mode=mode)
    await until(lambda: listener.statistics().waiting)
    wake.current().call_soon(listener.close)
    await until(lambda: listener.closed)
    with pytest.raises(anyio.ClosedResourceError):
        await listener.accept()
    listener.close()  # idempotent
    with pytest.raises(OSError, match="refused"):
        await connect("127.0.0.1", listener.port, config=config, mode=mode)
    await listener.aclose()
    # What was accepted lives on; what was not is aborted.
    await accepted.send(b"still here")
    assert await mine.receive() == b"still here"
    await accepted.aclose()
    await mine.aclose()
    await waiting.aclose()


async def test_closing_a_listener_ends_tasks_that_accept() -> None:
    listener = await listen("127.0.0.1", config=Config(device=DEVICE))

    async def accept() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await listener.accept()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(accept)
        await anyio.wait_all_tasks_blocked()
        listener.close()


async def test_aclose_of_a_listener_waits_for_negotiations() -> None:
    listener = await listen("127.0.0.1", config=Config(device=DEVICE))
    silent = await anyio.connect_tcp("127.0.0.1", listener.port)
    await until(lambda: listener.statistics().undecided)
    listener.close()
    await listener.aclose()
    assert not listener.statistics().undecided
    await silent.aclose()


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_datagrams_end_in_the_same_ways(mode: Mode) -> None:
    config = Config(device=DEVICE)
    async with await listen_datagram("127.0.0.1", config=config, mode=mode) as listener:
        one = await connect_datagram("127.0.0.1", listener.port, config=config, mode=mode)
        other = await listener.accept()
        lost: list[object] = []
        other.add_close_callback(lost.append)
        await one.send(b"last")
        await one.send_eof()
        await until(lambda: other._pipe.peek() is not None)
        assert not other.at_eof
        assert await other.receive() == b"last"
        await until(lambda: other.at_eof)
        assert not other.closed
        other.abort()
        await until(lambda: lost)
        assert (other.closed, other.at_eof) == (True, True)
        await one.aclose()
        two = await connect_datagram("127.0.0.1", listener.port, config=config, mode=mode)
        third = await listener.accept()
        third.add_close_callback(lost.append)
        two.abort()
        await until(lambda: len(lost) == 2)
        assert third.closed
        await third.aclose()
