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
