"""Operations of streams that do not wait see what has come while the event loop had no turn."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.nowait import check_ask_in_a_thread, poll_on_events_only, true_without_a_turn, without_a_turn

if TYPE_CHECKING:
    from tests.streams.pairs import Pair

pytestmark = pytest.mark.anyio


@pytest.fixture
async def quiet(pair: Pair) -> Pair:
    """A pair that has spoken, and whose receivers have met an empty pipe. Nothing polls by itself."""
    await poll_on_events_only()
    for sender, receiver in (pair, pair[::-1]):
        await sender.send(b"first")
        got = await receiver.receive()
        while len(got) < 5:
            got += await receiver.receive()
        with anyio.move_on_after(0):
            await receiver.receive()
    return pair


async def test_data_is_seen(quiet: Pair) -> None:
    one, other = quiet
    assert one.send_nowait(b"now") == 3
    got = b""
    while len(got) < 3:
        got += without_a_turn(other.receive_nowait)
    assert got == b"now"


async def test_room_is_seen(quiet: Pair) -> None:
    one, other = quiet
    with contextlib.suppress(anyio.WouldBlock):
        while True:
            one.send_nowait(bytes(65536))

    def attempt() -> int:
        with contextlib.suppress(anyio.WouldBlock):
            other.receive_nowait()
        return one.send_nowait(b"more")

    assert without_a_turn(attempt)


async def test_the_end_is_seen(quiet: Pair) -> None:
    one, other = quiet
    one._pipe.send_eof()
    with pytest.raises(anyio.EndOfStream):
        without_a_turn(other.receive_nowait)


async def test_at_eof_is_true(quiet: Pair) -> None:
    one, other = quiet
    assert not other.at_eof
    one._pipe.send_eof()
    true_without_a_turn(lambda: other.at_eof)


async def test_an_abort_is_seen(quiet: Pair) -> None:
    one, other = quiet
    assert not other.closed
    one.abort()
    true_without_a_turn(lambda: other.closed)
    with pytest.raises(anyio.BrokenResourceError):
        other.receive_nowait()


async def test_a_look_takes_nothing_from_a_task_that_waits(quiet: Pair) -> None:
    one, other = quiet
    got: list[bytes] = []

    async def receive() -> None:
        while len(got) < 3:
            got.extend(bytes([byte]) for byte in await other.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        one.send_nowait(b"now")
        for _ in range(10):
            assert not other.at_eof
    assert b"".join(got) == b"now"


async def test_another_thread_may_ask_whether_it_is_over(quiet: Pair) -> None:
    await check_ask_in_a_thread(*quiet)
