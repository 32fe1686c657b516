"""A link that has failed at the client's end only: new connections get a new one at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import LinkError
from aiordma.links.failover.leave import switch_back
from aiordma.proto import clc
from tests.health import check_echo, nothing_left, until
from tests.roles import LOCAL

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from aiordma.links.group import LinkGroup

pytestmark = pytest.mark.anyio


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


def groups_of(engine: Engine, role: str) -> set[LinkGroup]:
    return {group for group in engine.all_groups if group.key[1] == role}


def lose_client_end(engine: Engine) -> LinkGroup:
    """Of a link that nobody uses, so that no stream tells the server."""
    (group,) = [group for group in groups_of(engine, "client") if group.active]
    group.link.queue_pair.break_link(LinkError("broken by the test"))
    return group


async def test_many_connections_ask_again_and_share_the_new_link() -> None:
    config = Config(tickets=0)
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)

            async def use() -> None:
                async with await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma") as stream:
                    await check_echo(stream, b"x" * 1000)

            await use()
            for _ in range(3):
                await until(lambda: not any(group.members for group in engine.all_groups))
                lose_client_end(engine)
                async with anyio.create_task_group() as users:
                    for _ in range(20):
                        users.start_soon(use)
                # The server's old ends find out by their probes, and go.
                await until(lambda: len(groups_of(engine, "server")) == 1)
                assert len(groups_of(engine, "client")) == 1
            tasks.cancel_scope.cancel()


async def test_a_stream_on_tcp_that_comes_back() -> None:
    """The server's end of the link is whole in its own eyes when the stream asks for it."""
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            config = Config(tickets=0)
            stream = await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma")
            pipe = stream._pipe
            assert pipe.leave(aiordma.Code.SWITCHED, "asked for by the test")  # type: ignore[attr-defined]
            await until(lambda: stream.path == "tcp")
            await until(lambda: not any(group.members for group in engine.all_groups))
            lost = lose_client_end(engine)
            await switch_back(pipe)  # type: ignore[arg-type]
            assert stream.path == "rdma"
            await check_echo(stream, b"y" * 1000)
            (group,) = groups_of(engine, "client")
            assert group is not lost
            await stream.aclose()
            await until(lambda: not any(group.members for group in engine.all_groups))
            tasks.cancel_scope.cancel()


async def test_a_client_that_denies_a_link_harms_no_stream_on_it() -> None:
    """Anybody may say that he does not know a link: the one who uses it keeps it."""
    config = Config(tickets=0)
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            stream = await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma")
            (old,) = groups_of(engine, "server")
            number = old.link.queue_pair.qp_num
            denied = await engine.propose(unknown_qpn=number)
            proposal = clc.decode(denied.proposal.encode())
            assert isinstance(proposal, clc.Proposal)
            assert proposal.unknown_qpn == number
            offer = await engine.answer(proposal, "somebody")
            assert offer.first_contact
            assert offer.group is not old
            offer.abandon()
            denied.abandon()
            await check_echo(stream)
            assert stream.path == "rdma"
            # The next connection is offered a new link.
            other = await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma")
            await check_echo(other)
            assert old.active
            for each in (stream, other):
                await each.aclose()
            tasks.cancel_scope.cancel()
        await until(lambda: not any(group.members for group in engine.all_groups))
