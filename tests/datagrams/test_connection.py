"""Properties of every datagram connection: on each kind of pipe and each event loop."""

from __future__ import annotations

import contextlib
import errno
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute

from aiordma.attributes import RdmaAttribute
from tests.cancelling import at_await, at_turn
from tests.datagrams.pairs import LIMIT, MAKERS, Pair, receive_on, send_on
from tests.health import until
from tests.wake.meanwhile import in_the_next_checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.datagrams.connection import DatagramConnection

pytestmark = pytest.mark.anyio


@pytest.fixture(params=MAKERS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    one, other = await MAKERS[request.param]()
    yield one, other
    await one.aclose()
    await other.aclose()


def messages(seed: int, count: int) -> list[bytes]:
    random = Random(seed)
    sizes = (0, 1, 3, 4, 5, 63, 64, 2047, 2048, 2049, 5000, LIMIT - 1, LIMIT)
    return [random.randbytes(random.choice(sizes)) for _ in range(count)]


async def turns(n: int = 10) -> None:
    for _ in range(n):
        await anyio.lowlevel.checkpoint()


async def fill(connection: DatagramConnection, message: bytes) -> int:
    """Send until the pipe is full; return the number of messages."""
    sent = quiet = 0
    while quiet < 5:
        try:
            connection.send_nowait(message)
            sent += 1
            quiet = 0
        except anyio.WouldBlock:
            quiet += 1
            await turns()
            await anyio.sleep(0.002)  # the kernel moves what is in its buffers, and makes them larger
    return sent


async def send_on_and_on(connection: DatagramConnection) -> None:
    """Wait to send, whatever room fill() left: on TCP, the kernel may make its buffers larger at any time."""
    while True:
        await connection.send(b"x" * 5000)


async def drain(connection: DatagramConnection) -> list[bytes]:
    return [message async for message in connection]


async def test_messages_arrive_whole_and_in_order_both_ways(pair: Pair) -> None:
    sent = messages(1, 300)

    async def write(connection: DatagramConnection) -> None:
        for message in sent:
            await connection.send(message)
        await connection.send_eof()

    async def read(connection: DatagramConnection) -> None:
        assert await drain(connection) == sent

    async with anyio.create_task_group() as tasks:
        for connection in pair:
            tasks.start_soon(write, connection)
            tasks.start_soon(read, connection)
    assert pair[0].statistics()[:2] == (300, 300)


async def test_batches_carry_the_same(pair: Pair) -> None:
    one, other = pair
    sent = messages(2, 400)
    got: list[bytes] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send_many, sent)
        while len(got) < len(sent):
            some = await other.receive_many(7)
            assert 1 <= len(some) <= 7
            got += some
    assert got == sent
    with pytest.raises(ValueError, match="at least 1"):
        await other.receive_many(0)
    await one.send_many([])
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.receive_many()


async def test_a_message_too_long_is_refused_whole(pair: Pair) -> None:
    one, other = pair
    assert one.max_message_bytes == LIMIT
    with pytest.raises(OSError, match=f"{LIMIT + 1} bytes, at most {LIMIT}") as caught:
        await one.send(bytes(LIMIT + 1))
    assert caught.value.errno == errno.EMSGSIZE
    with pytest.raises(OSError, match="message too long"):
        one.send_nowait(bytes(LIMIT + 1))
    with pytest.raises(OSError, match="message too long"):
        await one.send_many([b"before", bytes(LIMIT + 1), b"never"])
    await one.send(b"after")
    assert [await other.receive(), await other.receive()] == [b"before", b"after"]


async def test_every_bytes_like_item_can_be_sent(pair: Pair) -> None:
    one, other = pair
    mutable = bytearray(b"x" * 5000)
    for item in (bytearray(b"ab"), memoryview(b"cd"), memoryview(b"efghijkl").cast("I"), mutable):
        await one.send(item)
    mutable[:] = b"y" * 5000  # already copied: none of this is sent
    assert [await other.receive() for _ in range(4)] == [b"ab", b"cd", b"efghijkl", b"x" * 5000]
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            await one.send(wrong)  # type: ignore[arg-type]


async def test_a_slow_receiver_stops_the_sender_and_loses_nothing(pair: Pair) -> None:
    one, other = pair
    message = b"m" * 1000
    sent = await fill(one, message)
    assert sent >= 1
    blocked = one.statistics().times_blocked
    assert blocked > 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, b"one more")
        await turns()
        for _ in range(sent):
            assert await other.receive() == message
        assert await other.receive() == b"one more"
    with pytest.raises(anyio.WouldBlock):
        other.receive_nowait()
    assert one.writable > 0


async def test_borrow_lends_a_message(pair: Pair) -> None:
    one, other = pair
    sent = messages(3, 60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send_many, sent)
        for message in sent:
            with await other.borrow() as view:
                assert view.readonly
                assert view == message
                with pytest.raises(anyio.BusyResourceError):
                    await other.receive()
                with pytest.raises(anyio.BusyResourceError):
                    other.receive_nowait()
            with pytest.raises(ValueError, match="released"):
                len(view)
    await one.send(b"last")
    with await other.borrow() as view:
        assert bytes(view) == b"last"
        await other.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await other.receive()


async def test_one_task_in_each_direction(pair: Pair) -> None:
    one, other = pair

    await fill(one, b"f" * 5000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_on_and_on, one)
        tasks.start_soon(one.receive)
        await anyio.wait_all_tasks_blocked()
        for call in (one.send, one.send_many):
            with pytest.raises(anyio.BusyResourceError):
                await call(b"x")  # type: ignore[arg-type]
        with pytest.raises(anyio.BusyResourceError):
            one.send_nowait(b"x")
        for receive in (one.receive, one.receive_many, one.borrow):
            with pytest.raises(anyio.BusyResourceError):
                await receive()
        tasks.cancel_scope.cancel()
    assert await other.receive() == b"f" * 5000


async def test_the_end_says_that_a_send_has_begun_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    filled = await fill(one, b"f" * 5000)
    async with anyio.create_task_group() as tasks:

        async def begin() -> None:
            tasks.start_soon(one.send_many, [b"m" * 5000] * 4000)
            while not one.in_use:
                await anyio.lowlevel.checkpoint()

        in_the_next_checkpoint(monkeypatch, begin)
        with pytest.raises(anyio.BusyResourceError):
            await one.send_eof()
        for _ in range(filled + 4000):
            await other.receive()
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()


async def test_nobody_comes_between_the_messages_of_a_batch(pair: Pair) -> None:
    one, other = pair
    batch = [b"%d" % number for number in range(5000)]
    state = "before"

    async def send() -> None:
        nonlocal state
        state = "sending"
        await one.send_many(batch)
        state = "done"

    async def intrude() -> None:
        while state != "done":
            if state == "sending":
                with pytest.raises(anyio.BusyResourceError):
                    one.send_nowait(b"between")
            await anyio.lowlevel.checkpoint()

    got: list[bytes] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(intrude)
        while len(got) < len(batch):
            got += await other.receive_many(100)
    assert got == batch
    await one.send(b"after")
    assert await other.receive() == b"after"


@pytest.mark.parametrize("cancel", [at_await, at_turn])
async def test_a_cancelled_send_has_sent_nothing(pair: Pair, cancel) -> None:  # type: ignore[no-untyped-def]
    one, other = pair
    expected = [b"f" * 4000] * await fill(one, b"f" * 4000)
    # It waits once: there is no second await to cancel it at.
    for n in range(1, 2 if cancel is at_await else 12):
        done, _ = await cancel(n, lambda: one.send(b"x" * 4000))
        if done:  # the kernel's buffers may grow
            expected.append(b"x" * 4000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, b"end")
        got = []
        while (message := await other.receive()) != b"end":
            got.append(message)
    assert got == expected


@pytest.mark.parametrize("cancel", [at_await, at_turn])
async def test_a_cancelled_receive_has_taken_nothing(pair: Pair, cancel) -> None:  # type: ignore[no-untyped-def]
    one, other = pair
    for receive in (other.receive, other.receive_many, other.borrow):
        for n in range(1, 2 if cancel is at_await else 6):
            done, _ = await cancel(n, receive)
            assert not done
    got: list[bytes] = []
    for number in range(60):
        await one.send(b"%d" % number)
        for n in range(1, 60):
            done, message = await cancel(n, other.receive)
            if done:
                got.append(message)
                break
    assert got == [b"%d" % number for number in range(60)]


async def test_the_end_comes_behind_everything(pair: Pair) -> None:
    one, other = pair
    sent = messages(5, 40)
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            await one.send_many(sent)
            await one.send_eof()
            await one.send_eof()

        tasks.start_soon(write)
        assert await drain(other) == sent
    for _ in range(2):
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        with pytest.raises(anyio.EndOfStream):
            other.receive_nowait()
    with pytest.raises(anyio.ClosedResourceError):
        await one.send(b"x")
    with pytest.raises(anyio.ClosedResourceError):
        one.send_nowait(b"x")
    await other.send(b"the other way is open")
    assert await one.receive() == b"the other way is open"


async def test_closing_delivers_what_was_accepted(pair: Pair) -> None:
    one, other = pair
    count = await fill(one, b"f" * 3000)
    await one.aclose()
    await one.aclose()
    got: list[bytes] = []
    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        await receive_on(other, got)
    assert got == [b"f" * 3000] * count
    for call in (lambda: one.send(b""), one.receive, one.receive_many, one.borrow, one.send_eof):
        with pytest.raises(anyio.ClosedResourceError):
            await call()


async def test_waiting_tasks_learn_of_the_close(pair: Pair) -> None:
    one, _ = pair
    await fill(one, b"f" * 3000)
    ended = []

    async def wait(call) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(anyio.ClosedResourceError):
            await call()
        ended.append(call)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, lambda: send_on_and_on(one))
        tasks.start_soon(wait, one.receive)
        await anyio.wait_all_tasks_blocked()
        await one.aclose()
    assert len(ended) == 2


async def test_an_abort_is_an_error_at_the_peer(pair: Pair) -> None:
    one, other = pair
    await one.send(b"maybe")
    await anyio.aclose_forcefully(one)
    with pytest.raises(anyio.BrokenResourceError):
        await receive_on(other)
    with pytest.raises(anyio.BrokenResourceError):
        await send_on(other)


async def test_a_peer_that_closed_breaks_the_sender(pair: Pair) -> None:
    one, other = pair
    await other.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        await send_on(one)


async def test_sends_to_a_closed_peer_leave_what_it_sent(pair: Pair) -> None:
    one, other = pair
    await other.send_many([b"no, thank you", b"", bytes(500)])
    await other.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        await send_on(one)
    assert [await one.receive() for _ in range(3)] == [b"no, thank you", b"", bytes(500)]
    with pytest.raises(anyio.EndOfStream):
        await one.receive()


async def test_attributes(pair: Pair) -> None:
    one, other = pair
    assert one.extra(RdmaAttribute.path) == one.path == other.path
    assert (one.fallback_reason is None) == (one.path in ("rdma", "memory"))
    if one.fallback_reason is not None:
        assert one.extra(RdmaAttribute.fallback_reason) is one.fallback_reason
    assert one.extra(SocketAttribute.remote_port) == other.extra(SocketAttribute.local_port)
    assert one.path in repr(one)
    await one.aclose()
    assert "closed" in repr(one)


async def test_a_busy_sender_lets_others_run(pair: Pair) -> None:
    one, other = pair
    ran = 0

    async def count() -> None:
        nonlocal ran
        while True:
            await anyio.lowlevel.checkpoint()
            ran += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        for _ in range(3000):
            await one.send(b"x")
            await other.receive()
        tasks.cancel_scope.cancel()
    assert ran > 10


async def test_one_that_only_looks_sees_what_comes(pair: Pair) -> None:
    """Nothing waits here that would be told."""
    one, other = pair
    got: list[bytes] = []

    def look() -> bool:
        with contextlib.suppress(anyio.WouldBlock):
            got.append(other.receive_nowait())
        return bool(got)

    assert not look()
    for number in range(3):
        await one.send(b"%d" % number)
        await until(look)
        assert got.pop() == b"%d" % number


async def test_a_reset_that_a_send_meets_is_no_end(pair: Pair) -> None:
    """The kernel reports it once, and then an end: a reader that is told of that takes the rest for whole."""
    one, other = pair
    await other.send(b"before")
    assert await one.receive() == b"before"
    other.abort()

    async def send() -> None:
        while True:
            await one.send(b"x")
            await anyio.lowlevel.checkpoint()

    with pytest.raises(anyio.BrokenResourceError):
        await send()
    with pytest.raises(anyio.BrokenResourceError):
        await one.receive()
