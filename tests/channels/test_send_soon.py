"""send_soon() and flush() of message channels."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from aiordma.channels import channel as channels
from aiordma.config import Config
from aiordma.errors import LinkError
from tests.pipes.channel_ends import End
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("path", ["rdma", "tcp"])]

CONFIG = Config(device=DEVICE)
#: More than a channel and sockets hold.
MANY = [bytes([i % 251]) * (100_000 if i % 3 else 300) for i in range(300)]

Pair = tuple[channels.ConnectedChannel, channels.ConnectedChannel]


@asynccontextmanager
async def pair(path: Any) -> AsyncIterator[Pair]:
    async with await channels.listen("127.0.0.1", config=CONFIG) as listener:
        async with await channels.connect("127.0.0.1", listener.port, config=CONFIG, mode=path) as one:
            async with await listener.accept() as other:
                assert one.path == path
                yield one, other


async def test_messages_go_out_by_themselves_in_order(path: str) -> None:
    async with pair(path) as (one, other):
        one.send_soon(MANY, b"head")
        one.send_soon(memoryview(b"alone"))
        assert one._outbox is not None
        assert one._outbox.nbytes
        reader = End(other.channel, keeps_views=False)
        assert await reader.received(len(MANY) + 1) == [*(b"head" + each for each in MANY), b"alone"]
        await one.flush()
        assert one._outbox.nbytes == 0


async def test_flush_waits_and_may_be_cancelled(path: str) -> None:
    async with pair(path) as (one, other):
        one.send_soon(MANY)
        with anyio.move_on_after(0.01) as scope:
            await one.flush()
        assert scope.cancelled_caught
        reader = End(other.channel, keeps_views=False)
        with anyio.fail_after(20):
            await one.flush()
        assert await reader.received(len(MANY)) == MANY


async def test_all_are_accepted_or_none_and_bounded(path: str) -> None:
    async with pair(path) as (one, other):
        with pytest.raises(ValueError, match="bytes, at most"):
            one.send_soon([b"first", bytes(one.channel.max_message_bytes + 1)])
        with pytest.raises(ValueError, match="head"):
            one.send_soon([b"first"], bytes(600))
        one.send_soon_limit = 10_000
        one.send_soon(MANY)
        with pytest.raises(anyio.WouldBlock, match="await flush"):
            one.send_soon(b"x")
        reader = End(other.channel, keeps_views=False)
        assert await reader.received(len(MANY)) == MANY


async def test_closing_delivers_and_an_abort_drops(path: str) -> None:
    async with pair(path) as (one, other):
        one.send_soon(MANY)
        reader = End(other.channel, keeps_views=False)
        with anyio.fail_after(20):
            await one.aclose()
        assert await reader.received(len(MANY)) == MANY
        assert await reader.ended() is None
    async with pair(path) as (one, other):
        one.send_soon(MANY)
        one.abort()
        with pytest.raises(anyio.BrokenResourceError, match="this end was closed"):
            await one.flush()
        with pytest.raises(anyio.BrokenResourceError):
            one.send_soon(b"x")


async def test_a_lost_peer_is_an_error_of_the_flush(path: str) -> None:
    async with pair(path) as (one, other):
        seen: list[BaseException | None] = []
        closed = anyio.Event()

        def on_closed(error: BaseException | None) -> None:
            seen.append(error)
            closed.set()

        one.channel.on_closed = on_closed
        one.send_soon(MANY)
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
                    await one.flush()

            tasks.start_soon(flush)
            await anyio.lowlevel.checkpoint()
            other.abort()
        # A flush that finds the loss itself, by sending, ends a turn of the loop before on_closed is called.
        with anyio.fail_after(20):
            await closed.wait()
        assert len(seen) == 1
        assert isinstance(seen[0], LinkError)


@pytest.mark.parametrize("way", ["try_send", "send_soon"])
@pytest.mark.parametrize("closes", ["client", "server"])
async def test_a_send_to_a_closed_peer_leaves_what_it_sent(path: str, way: str, closes: str) -> None:
    """The refusal may be among it; the end behind it is one in order."""
    sent = [b"no, thank you", bytes(20_000)]
    async with pair(path) as ends:
        one, other = ends if closes == "server" else ends[::-1]
        other.send_soon(sent)
        await other.flush()
        await other.aclose()
        with contextlib.suppress(anyio.BrokenResourceError):  # TCP takes them, until the close has been read
            for _ in range(50):
                if way == "try_send":
                    one.channel.try_send(b"", b"more of it")
                else:
                    one.send_soon([b"more of it"] * 2)
                await anyio.lowlevel.checkpoint()
        reader = End(one.channel, keeps_views=False)
        assert await reader.received(2) == sent
        assert await reader.ended() is None


async def test_a_close_ends_a_flush_though_nothing_is_taken(path: str) -> None:
    """Of a user that takes what has come only when it has sent."""
    async with pair(path) as (one, other):
        other.send_soon(b"no, thank you")
        await other.flush()
        one.send_soon(MANY)
        await other.aclose()
        with anyio.fail_after(20), contextlib.suppress(anyio.BrokenResourceError):  # TCP may take all of it
            await one.flush()
        reader = End(one.channel, keeps_views=False)
        assert await reader.received(1) == [b"no, thank you"]
        assert await reader.ended() is None
