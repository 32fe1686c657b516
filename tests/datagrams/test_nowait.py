"""Operations of datagrams that do not wait see what has come while the event loop had no turn."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.datagrams.pairs import MAKERS, Pair
from tests.nowait import check_ask_in_a_thread, poll_on_events_only, true_without_a_turn, without_a_turn
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=MAKERS)
async def quiet(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """A pair that has spoken, and whose receivers have met an empty pipe. Nothing polls by itself."""
    one, other = await MAKERS[request.param]()
    await poll_on_events_only()
    for sender, receiver in ((one, other), (other, one)):
        await sender.send(b"first")
        assert await receiver.receive() == b"first"
        with anyio.move_on_after(0):
            await receiver.receive()
    yield one, other
    one.abort()
    other.abort()


async def test_a_message_is_seen(quiet: Pair) -> None:
    one, other = quiet
    one.send_nowait(b"now")
    assert without_a_turn(other.receive_nowait) == b"now"


async def test_room_is_seen(quiet: Pair) -> None:
    one, other = quiet
    with contextlib.suppress(anyio.WouldBlock):
        while True:
            one.send_nowait(bytes(500))

    def attempt() -> bool:
        with contextlib.suppress(anyio.WouldBlock):
            other.receive_nowait()
        one.send_nowait(b"more")
        return True

    assert without_a_turn(attempt)


async def test_the_end_is_seen(quiet: Pair) -> None:
    one, other = quiet
    assert not other.at_eof
    one._pipe.send_eof()
    true_without_a_turn(lambda: other.at_eof)
    with pytest.raises(anyio.EndOfStream):
        other.receive_nowait()


async def test_an_abort_is_seen(quiet: Pair) -> None:
    one, other = quiet
    assert not other.closed
    one.abort()
    true_without_a_turn(lambda: other.closed)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_an_endpoint_sees_a_datagram(mode: aiordma.Mode) -> None:
    config = Config(device=DEVICE)
    one = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode, config=config)
    other = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode, config=config)
    async with one, other:
        await poll_on_events_only()
        await one.resolve(other.local_address)
        await one.sendto(b"first", *other.local_address)
        assert await other.receive() == (b"first", one.local_address)
        one.send_nowait((b"now", other.local_address))
        assert without_a_turn(other.receive_nowait) == (b"now", one.local_address)


async def test_another_thread_may_ask_whether_it_is_over(quiet: Pair) -> None:
    await check_ask_in_a_thread(*quiet)
