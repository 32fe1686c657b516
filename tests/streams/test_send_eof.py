"""send_eof() and what other tasks do while it gives them their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from tests.wake.meanwhile import in_the_next_checkpoint

if TYPE_CHECKING:
    from tests.streams.pairs import Pair

pytestmark = pytest.mark.anyio

LONG = bytes(range(256)) * (64 << 10)


async def test_a_send_that_has_begun_meanwhile_is_not_passed_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the end nor a word about it: the peer would wait for ever."""
    one, other = pair
    async with anyio.create_task_group() as tasks:

        async def begin() -> None:
            tasks.start_soon(one.send, LONG)
            while not one.in_use:
                await anyio.lowlevel.checkpoint()

        in_the_next_checkpoint(monkeypatch, begin)
        with pytest.raises(anyio.BusyResourceError):
            await one.send_eof()
        assert await other.receive_exactly(len(LONG)) == LONG
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()


@pytest.mark.parametrize("how", ["abort", "aclose"])
async def test_nor_is_the_end_of_the_stream(pair: Pair, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    one, _ = pair

    async def end() -> None:
        if how == "abort":
            one.abort()
        else:
            await one.aclose()

    in_the_next_checkpoint(monkeypatch, end)
    with pytest.raises(anyio.ClosedResourceError):
        await one.send_eof()


async def test_two_tasks_may_end_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    in_the_next_checkpoint(monkeypatch, one.send_eof)
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()
