"""send_soon() and flush() of connected datagrams: accepted without waiting, in order, and never lost."""

from __future__ import annotations

import errno
from random import Random

import anyio
import anyio.lowlevel
import pytest

from aiordma.testing.memory import memory_pipe_pair
from tests.streams.test_stream import turns

from .pairs import LIMIT, Pair, greet, over
from .test_connection import pair

pytestmark = pytest.mark.anyio

__all__ = ["pair"]  # a fixture

#: More than rings and sockets hold.
MANY = [Random(i).randbytes(9000 + i) for i in range(800)]


async def received(connection: object, count: int) -> list[bytes]:
    return [await connection.receive() for _ in range(count)]  # type: ignore[attr-defined]


async def test_messages_arrive_in_order_with_other_methods_between(pair: Pair) -> None:
    one, other = pair
    random = Random(1)
    sent: list[bytes] = []
    got: list[bytes] = []

    async def read() -> None:
        got.extend([message async for message in other])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for _ in range(150):
            messages = [
                random.randbytes(random.choice((0, 1, 30, 5000, 12_000))) for _ in range(random.randrange(5))
            ]
            one.send_soon(messages)
            sent += messages
            what = random.randrange(4)
            if what == 0:
                await one.send(b"send")
                sent.append(b"send")
            elif what == 1:
                await one.send_many([b"a", b"b"])
                sent += [b"a", b"b"]
            elif what == 2:
                await one.flush()
            else:
                await anyio.lowlevel.checkpoint()
        await one.send_eof()  # behind what waits
    assert got == sent


async def test_it_never_waits_and_goes_out_by_itself(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    one.send_soon(b"one alone")
    assert one._outbox is not None
    assert one._outbox.nbytes
    with pytest.raises(anyio.WouldBlock):
        one.send_nowait(b"x")
    assert await received(other, len(MANY) + 1) == [*MANY, b"one alone"]  # no task flushes
    await one.flush()
    one.send_nowait(b"x")
    assert await other.receive() == b"x"
    assert one._outbox.nbytes == 0


async def test_a_cancelled_flush_loses_nothing(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await turns()
                scope.cancel()

            tasks.start_soon(cancel)
            await one.flush()
    assert scope.cancelled_caught
    assert await received(other, len(MANY)) == MANY


async def test_all_are_accepted_or_none(pair: Pair) -> None:
    one, other = pair
    too_long = bytes(one.max_message_bytes + 1)
    with pytest.raises(OSError, match="message too long") as caught:
        one.send_soon([b"first", too_long])
    assert caught.value.errno == errno.EMSGSIZE
    with pytest.raises(BufferError):
        one.send_soon([b"first", memoryview(bytes(10))[::2]])
    with pytest.raises(TypeError):
        one.send_soon([b"first", 7])  # type: ignore[list-item]
    one.send_soon([])
    one.send_soon([b"only this"])
    assert await other.receive() == b"only this"


async def test_what_waits_is_bounded(pair: Pair) -> None:
    one, other = pair
    one.send_soon_limit = 20_000
    one.send_soon(MANY)  # one call may be longer
    with pytest.raises(anyio.WouldBlock, match="limit is 20000: await flush"):
        one.send_soon([b""])
    assert await received(other, len(MANY)) == MANY
    await one.flush()
    one.send_soon([b""])
    assert await other.receive() == b""


async def test_short_messages_are_copied(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    short = bytearray(b"before")
    one.send_soon([short])
    short[:] = b"after!"
    assert (await received(other, len(MANY) + 1))[-1] == b"before"


async def test_closing_delivers_what_was_accepted(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.aclose)
        assert await received(other, len(MANY)) == MANY
        with pytest.raises(anyio.EndOfStream):
            await other.receive()


async def test_an_abort_ends_what_waits(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    async with anyio.create_task_group() as tasks:

        async def flush() -> None:
            with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
                await one.flush()

        tasks.start_soon(flush)
        await turns()
        one.abort()
    with pytest.raises(anyio.ClosedResourceError):
        one.send_soon([b"x"])
    with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
        await received(other, len(MANY))


async def test_a_lost_peer_is_an_error_of_the_flush(pair: Pair) -> None:
    one, other = pair
    one.send_soon(MANY)
    other.abort()

    async def until_lost() -> None:
        while True:
            await one.flush()
            one.send_soon([bytes(LIMIT)])

    with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
        await until_lost()
    with pytest.raises(anyio.BrokenResourceError):
        one.send_soon([b"x"])


async def test_a_flush_ends_when_its_own_polling_sends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by thousands of runs on RDMA: the poll for room called the outbox, which sent all; there was no
    room for one more, so the flush began to wait, for nothing."""
    one, other = over(*memory_pipe_pair(999, delivery="immediate"))
    await greet(one, other)
    one.send_soon(MANY[:5])
    outbox = one._outbox
    assert outbox is not None
    got: list[bytes] = []

    def poll(_nbytes: int) -> bool:
        """The peer reads, and room comes back meanwhile."""
        while outbox.nbytes:
            message = other._pipe.try_receive()
            got.extend([] if message is None else [message])
        return False

    monkeypatch.setattr(one._pipe, "spin_writable", poll)
    async with one, other:
        with anyio.fail_after(10):
            await one.flush()
            while len(got) < 5:
                got.append(await other.receive())
        assert got == MANY[:5]
