"""Long messages for which there may never be registered memory are put together outside, within a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.links.message_memory import MessageMemory
from aiordma.verbs.memory.budget import Budget, MemoryLimitError

from .channel_ends import End
from .link_pairs import connect_channels

if TYPE_CHECKING:
    from .link_pairs import Open

pytestmark = pytest.mark.anyio


async def test_messages_that_are_put_together_outside_wait_for_each_other(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together stay within the limit, beyond the first."""
    size, fragment, most = 100_000, 4096, 0
    take, count = MessageMemory.take_sink, MessageMemory.count_copy

    def take_small(memory: MessageMemory, length: int) -> object:
        if length > fragment:
            raise MemoryLimitError("there may never be a block for it")
        return take(memory, length)

    def may_copy(length: int) -> bool:
        limited.copied_bytes = budget.copied_bytes
        return limited.may_copy(length)

    def counted(memory: MessageMemory, length: int) -> object:
        nonlocal most
        share = count(memory, length)
        most = max(most, budget.copied_bytes)
        return share

    async with open_engine(fragment_bytes=fragment) as engine:
        budget: Any = engine.pool.budget
        monkeypatch.setattr(MessageMemory, "take_sink", take_small)
        monkeypatch.setattr(MessageMemory, "count_copy", counted)
        pairs = [await connect_channels(engine) for _ in range(5)]
        limited = Budget(2 * size)
        monkeypatch.setattr(budget, "may_copy", may_copy)
        ends = [End(b) for _, b in pairs]
        for a, _ in pairs:
            assert a.try_send(b"", bytes(size))
            assert a.try_send(b"", bytes(size))
        for end in ends:
            assert [len(message) for message in await end.received(2)] == [size, size]
        assert most == 2 * size
        assert budget.copied_bytes == 0


async def test_one_that_waits_for_its_share_keeps_no_other_waiting(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A complete message counts until its user takes it, which may be never. Shorter ones find memory."""
    size, fragment = 100_000, 65536
    take, count = MessageMemory.take_sink, MessageMemory.count_copy

    def take_small(memory: MessageMemory, length: int) -> object:
        if length > fragment:
            raise MemoryLimitError("there may never be a block for it")
        return take(memory, length)

    def counted(memory: MessageMemory, length: int) -> object:
        for _, b in pairs[:1]:
            b.on_message = None  # its pull has begun, and ends while nobody takes what it brings
        return count(memory, length)

    def may_copy(length: int) -> bool:
        limited.copied_bytes = budget.copied_bytes
        return limited.may_copy(length)

    async with open_engine(fragment_bytes=fragment) as engine:
        budget: Any = engine.pool.budget
        monkeypatch.setattr(MessageMemory, "take_sink", take_small)
        monkeypatch.setattr(MessageMemory, "count_copy", counted)
        monkeypatch.setattr(budget, "may_copy", may_copy)
        limited = Budget(size)
        pairs = [await connect_channels(engine) for _ in range(4)]
        paused, *others = (End(b) for _, b in pairs)
        for (a, _), body in zip(pairs, (size, size, size, size // 4), strict=True):
            assert a.try_send(b"", bytes(body))
        await others[-1].received(1)
        assert [len(end.messages) for end in (paused, *others)] == [0, 0, 0, 1]
        assert budget.copied_bytes == size
        pairs.clear()
        paused.channel.on_message = paused._on_message
        for end in (paused, *others[:2]):
            assert [len(message) for message in await end.received(1)] == [size]
        assert budget.copied_bytes == 0
