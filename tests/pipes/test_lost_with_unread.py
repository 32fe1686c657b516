"""A channel's peer is lost while no messages are taken: what has come whole is handed over, then the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.links import parting
from aiordma.links.message_memory import MessageMemory
from tests.health import settle, until
from tests.tuned import tuned
from tests.world import DEVICE

from .channel_ends import End
from .link_pairs import connect_channels

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from aiordma.pipes._link_channel import MessageChannel

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

LARGE = bytes(range(250)) * 100


def cut(engine: Engine) -> None:
    for group in list(engine.groups.values()):
        if group.link is not None:
            group.link.queue_pair.break_link(LinkError("cut"))


async def lose(how: str, engine: Engine, a: MessageChannel, b: MessageChannel) -> None:
    """``b`` loses its peer ``a``."""
    if how == "abort":
        a.abort()
    elif how == "TCP":
        b.break_with(LinkError("its TCP connection is lost"))
    else:
        if how == "link, closed before":
            a.close()
            await until(lambda: b.peer_gone)
        cut(engine)
    await settle(20)


LOST = pytest.mark.parametrize("how", ["abort", "TCP", "link", "link, closed before"])


@LOST
async def test_what_is_whole_comes_before_the_end(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    take = MessageMemory.take_sink

    def take_and_pause(memory: MessageMemory, length: int) -> object:
        b.on_message = None  # the pull has begun, and ends
        return take(memory, length)

    monkeypatch.setattr(MessageMemory, "take_sink", take_and_pause)
    async with open_engine(fragment_bytes=4096) as engine:
        a, b = await connect_channels(engine)
        user = End(b)
        a.try_send(b"head", LARGE)
        a.try_send(b"small")
        await settle(100)
        await lose(how, engine, a, b)
        assert not user.closed
        assert not user.messages
        with pytest.raises(anyio.BrokenResourceError):
            b.try_send(b"in vain")
        b.on_message = user._on_message
        error = await user.ended()
        assert [bytes(message) for message in user.messages] == [b"head" + LARGE, b"small"]
        assert (error is None) == (how == "link, closed before")
        assert b.error is error
        assert len(user.closed) == 1


@LOST
async def test_what_was_not_pulled_is_lost_and_what_is_behind_it(open_engine: Open, how: str) -> None:
    async with open_engine(fragment_bytes=4096) as engine:
        a, b = await connect_channels(engine)
        user = End(b)
        b.on_message = None
        a.try_send(b"first")
        a.try_send(b"head", LARGE)
        a.try_send(b"behind")
        await settle(100)
        await lose(how, engine, a, b)
        assert not user.closed
        b.on_message = user._on_message
        assert isinstance(
            await user.ended(), LinkError
        )  # also where it had closed in order: not all has come
        assert user.messages == [b"first"]


@LOST
async def test_with_nothing_whole_the_end_comes_at_once(open_engine: Open, how: str) -> None:
    async with open_engine(fragment_bytes=4096) as engine:
        a, b = await connect_channels(engine)
        user = End(b)
        b.on_message = None
        a.try_send(b"head", LARGE)
        await settle(100)
        await lose(how, engine, a, b)
        assert isinstance(await user.ended(), LinkError)
        assert not user.messages


async def test_who_waits_for_room_is_told(open_engine: Open) -> None:
    """It may take what has come only when it has sent."""
    async with open_engine(channel_receive_bytes=32768) as engine:
        a, b = await connect_channels(engine)
        user, other, tried = End(b), End(a), []
        b.on_message = a.on_message = None
        a.try_send(b"before")
        await settle(20)
        while b.try_send(b"", bytes(1000)):
            pass
        b.on_writable = lambda: tried.append(b.error)
        cut(engine)
        await until(lambda: bool(tried))
        assert isinstance(tried[0], LinkError)
        b.on_message, a.on_message = user._on_message, other._on_message
        await user.ended()
        await other.ended()
        assert user.messages == [b"before"]
        assert set(other.messages) == {bytes(1000)}


async def test_closing_it_drops_what_was_kept(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        user = End(b)
        b.on_message = None
        a.try_send(b"before")
        await settle(20)
        cut(engine)
        await settle(20)
        b.close()
        assert b.is_finished
        await settle(20)
        assert (user.messages, user.closed) == ([], [])


class Waits:
    """A user of whom something has not been sent when the loop ends, and never will be."""

    unsent = 1

    def on_writable(self) -> None:
        """Nothing more."""


@pytest.mark.parametrize("ends", ["asyncio", "asyncio, closed", "trio"])
def test_the_end_of_the_loop_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    monkeypatch.setattr(parting, "_UNSENT_SECONDS", 0.0)
    monkeypatch.setattr(parting, "_LINGER_SECONDS", 0.0)
    kept: list[Any] = []

    async def use() -> None:
        engine = await engines.current(tuned(device=DEVICE))
        a, b = await connect_channels(engine)
        user, waits = End(b), Waits()
        b.on_message, b.on_writable = None, waits.on_writable
        a.try_send(b"before")
        await settle(20)
        kept.extend((engine, a, b, user, waits))

    if ends == "asyncio, closed":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        loop.close()
    else:
        anyio.run(use, backend=ends)
    engine, _, b, user, _ = kept
    assert [type(error) for error in user.closed] == [LinkError]
    assert user.messages == []
    assert b.is_finished
    assert engine.pool.used_bytes == 0
    assert caplog.text == ""
