"""Numbers that are used again while something older still has them: the number of a queue pair, for one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import LinkError, NegotiationError
from aiordma.links.failover.leave import switch_back
from aiordma.pipes._switchable import SwitchablePipe
from tests.health import check_echo, nothing_left, until
from tests.roles import LOCAL
from tests.tuned import tuned

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from aiordma.links.group import LinkGroup

pytestmark = pytest.mark.anyio

#: Links that are lost one after the other, while each leaves something unread.
LINKS = 5
WHOLE = Config(tickets=0)
UNREAD = b"not read yet"


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


def pipe_of(stream: aiordma.RdmaStream) -> SwitchablePipe:
    pipe = stream._pipe
    assert isinstance(pipe, SwitchablePipe)
    return pipe


def group_of(engine: Engine, role: str) -> LinkGroup:
    (group,) = [group for group in engine.groups.values() if group.key[1] == role]
    return group


async def lose_link(engine: Engine) -> None:
    """At the client's end, until the server's end has gone and its queue pair waits for the next link."""
    theirs = group_of(engine, "server")
    number = theirs.qp_num
    ours = group_of(engine, "client")
    ours.link.queue_pair.break_link(LinkError("broken by the test", ours.peer))
    parked = engine.cache.parked
    await until(lambda: theirs not in engine.all_groups)
    if engine.config.qp_cache:
        # The server's end takes its parts first, and from the end.
        await until(lambda: any(parts.qp.number == number for parts in parked))
        parked.sort(key=lambda parts: parts.qp.number == number)


@pytest.mark.parametrize("cached", [8, 0])
async def test_links_with_one_number(cached: int) -> None:
    """The server's end has gone, and its queue pair serves the next link. Here the old one still has a stream
    that was not read: it must not be found instead of the new one."""
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        if engine.backend.by_cm:
            pytest.skip("rdma_cm binds a queue pair to one link")
        engine.config = tuned(engine.config, qp_cache=cached)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            slow: list[aiordma.RdmaStream] = []
            quick = [await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma") for _ in range(4)]
            numbers = set()
            for _ in range(LINKS):
                numbers.add(group_of(engine, "server").qp_num)
                slow.append(await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma"))
                await slow[-1].send(UNREAD)
                await until(lambda: slow[-1]._pipe.readable == len(UNREAD))
                await lose_link(engine)
                await until(lambda: all(stream.path == "tcp" for stream in quick))
                async with anyio.create_task_group() as users:
                    for stream in quick:
                        users.start_soon(switch_back, pipe_of(stream))
                for stream in quick:
                    await check_echo(stream, b"x" * 1000)
                    assert stream.path == "rdma"
                # A new connection joins that link.
                async with await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma") as stream:
                    await check_echo(stream, b"x" * 1000)
            assert len(numbers) == 1 or not cached
            for stream in slow:
                assert await stream.receive() == UNREAD
            for stream in (*quick, *slow):
                await stream.aclose()
            await until(lambda: not any(group.members for group in engine.all_groups))
            tasks.cancel_scope.cancel()


async def test_a_number_that_only_a_failed_link_has(caplog: pytest.LogCaptureFixture) -> None:
    """The new link under this number is not known here any more: the stream asks for another one."""
    caplog.set_level(logging.DEBUG, "aiordma.link")
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        if engine.backend.by_cm:
            pytest.skip("rdma_cm binds a queue pair to one link")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            slow = await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma")
            await slow.send(UNREAD)
            await until(lambda: slow._pipe.readable == len(UNREAD))
            number = group_of(engine, "server").qp_num
            await lose_link(engine)
            async with await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma") as stream:
                await check_echo(stream, b"x" * 1000)
            assert group_of(engine, "server").qp_num == number
            await until(lambda: not group_of(engine, "client").members)
            group_of(engine, "client").close()
            async with await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma") as stream:
                await check_echo(stream, b"x" * 1000)
            assert await slow.receive() == UNREAD
            await slow.aclose()
            await until(lambda: not any(group.members for group in engine.all_groups))
            tasks.cancel_scope.cancel()


async def test_the_log_says_why_a_stream_stays_on_tcp(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At both ends: a program that asked hears of it, but not the one whose end refuses."""
    caplog.set_level(logging.DEBUG, "aiordma.link")
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            stream = await aiordma.connect(LOCAL, listener.port, config=WHOLE, mode="rdma")
            await check_echo(stream, b"x")
            assert pipe_of(stream).leave(aiordma.Code.SWITCHED, "asked for by the test")
            await until(lambda: stream.path == "tcp")
            monkeypatch.setattr(engine, "answer", refuse)
            with pytest.raises(NegotiationError) as caught:
                await switch_back(pipe_of(stream))
            assert caught.value.code == aiordma.Code.LIMIT_REACHED
            said = [text for text in caplog.messages if "does not return to RDMA" in text]
            assert len(said) == 2
            assert all(aiordma.Code.LIMIT_REACHED.text in text for text in said)
            await check_echo(stream, b"x")
            await stream.aclose()
            await until(lambda: not any(group.members for group in engine.all_groups))
            tasks.cancel_scope.cancel()


async def refuse(*_: object) -> None:
    raise NegotiationError(aiordma.Code.LIMIT_REACHED, "said by the test")
