"""More links than the completion queue of a loop has room for at first."""

from __future__ import annotations

import pytest

import aiordma
from aiordma.links import first_device
from aiordma.verbs.cq import CompletionQueue

pytestmark = pytest.mark.anyio


@pytest.fixture
def short_queue(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Queues for one link each; how often one grew, by its new depth."""
    grown: list[int] = []
    grow = CompletionQueue.grow

    def counted(self: CompletionQueue, depth: int) -> bool:
        done = grow(self, depth)
        grown.append(self.depth)
        return done

    monkeypatch.setattr(first_device, "_CQ_DEPTH", 128)
    monkeypatch.setattr(CompletionQueue, "grow", counted)
    return grown


async def test_the_queue_grows_with_the_links(short_queue: list[int]) -> None:
    """Both ends are on this loop: two links."""
    async with await aiordma.listen("127.0.0.1", 0) as listener:
        near = await aiordma.connect("127.0.0.1", listener.port, mode="rdma")
        async with near, await listener.accept() as far:
            assert near.path == far.path == "rdma"
            await near.send(b"question")
            assert await far.receive() == b"question"
            assert short_queue
            assert min(short_queue) >= 256


async def test_a_device_that_has_no_more(short_queue: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_queue: CompletionQueue, _depth: int) -> bool:
        return False

    monkeypatch.setattr(CompletionQueue, "grow", refuse)
    async with await aiordma.listen("127.0.0.1", 0) as listener:
        with pytest.raises(aiordma.NegotiationError) as caught:
            await aiordma.connect("127.0.0.1", listener.port, mode="rdma")
        assert caught.value.code == aiordma.Code.LIMIT_REACHED
