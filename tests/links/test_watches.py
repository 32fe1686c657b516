"""Who watches the TCP connection of a stream: the negotiation first, then the stream, with one watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma import wake
from aiordma.config import Config
from aiordma.links import engine as engines
from tests.health import check_echo, until
from tests.negotiation.serving import LOCAL, serving
from tests.pipes.link_pairs import connect
from tests.roles import echo
from tests.streams.pairs import tcp_sockets
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors whose watch has been ended."""
    kind: Any = type(wake.current())
    unwatch: Callable[[Any, int], None] = kind.unwatch_fd
    found: list[int] = []

    def note(waker: Any, fd: int) -> None:
        found.append(fd)
        unwatch(waker, fd)

    monkeypatch.setattr(kind, "unwatch_fd", note)
    return found


async def test_a_negotiation_hands_its_watch_to_the_stream(ended: list[int]) -> None:
    """With uvloop, the end of one watch and the beginning of the next are ten system calls."""
    config = Config(device=DEVICE, tickets=0)
    async with serving(echo, config=config) as listener:
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma", config=config) as stream:
            await check_echo(stream)  # the engine is there now
        await until(lambda: len(ended) >= 2)  # both ends'
        await until(lambda: not listener.statistics().undecided)
        ended.clear()
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma", config=config) as stream:
            await check_echo(stream)
            assert ended == []
        await until(lambda: len(ended) == 2)


async def test_a_stream_that_is_over_ends_the_watch_that_it_gets(ended: list[int]) -> None:
    engine = await engines.current(Config(device=DEVICE))
    pipe, peer = await connect(engine)
    pipe.abort()
    peer.abort()
    await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
    mine, theirs = tcp_sockets()
    watched = mine.fileno()
    wake.current().watch_fd(watched, lambda: None)
    with theirs:
        pipe.attach_tcp(mine)
        assert mine.fileno() == -1
        assert watched in ended
    engine.close()
