"""A peer that asks without end and takes no answer costs its victim a bounded queue, and loses its link."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.links import engine as engines
from tests.health import check_echo, check_end, until
from tests.processes import process
from tests.roles import LOCAL, echo

from .askers import OF_A_CLIENT, OF_A_SERVER, TIMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.links.group import LinkGroup
    from aiordma.links.link import Link
    from tests.processes import Process

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ASKERS = "tests.system.adversity.askers"
ECHO, PUMP = "tests.roles:echo_server", "tests.roles:pumping_clients"
#: Messages that may wait on a link with one stream, with much to spare: the attack sends 100,000.
FEW = 2_000
#: Those that are answered at once, or not at all, or break the rules the first time.
LOST = {
    "a sign of life": "no window left for a link control message",
    "offers a larger ring": "takes no answers",
    "pauses": "an offer of a ring that was not made",
    "refuses": "an offer of a ring that was not made",
    "confirms": "Confirm Link for a link that is not being set up",
    "offers and names rings": "named a ring before it could know that it was asked for",
    "returns tickets": "takes no answers",
    "gives tickets": "takes no answers",
}


class Watch:
    """How long the queue of control messages of any link has been, and which links there were."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine
        self.most = 0
        self.groups: list[LinkGroup] = []
        self._add, engine.add_group = engine.add_group, self._added  # type: ignore[method-assign]

    def _added(self, group: LinkGroup) -> None:
        self.groups.append(group)
        self._add(group)

    async def run(self) -> None:
        while True:
            for group in self._engine.all_groups:
                self.most = max(self.most, group.link.queue_pair.llc_waiting)
            await anyio.sleep(0.001)


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    watch = Watch(await engines.current())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        yield watch
        tasks.cancel_scope.cancel()


async def becomes_of(link: Link, asker: Process, question: str) -> None:
    """Wait until the asker has asked enough; check what its victim says of it."""
    expected = LOST.get(question)
    if expected is None:
        number, is_all = 0, False
        while not is_all:
            number, is_all = await asker.heard()
        assert number >= TIMES
        assert link.failure is None
    else:
        await until(lambda: link.failure is not None, lambda: question)
        assert expected in str(link.failure)


async def get(flows: Process) -> None:
    """A bystander's bytes go on."""
    goal = 100_000
    while goal > 0:
        goal -= await flows.heard()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("question", OF_A_CLIENT)
async def test_a_client_that_takes_no_answers(question: str) -> None:
    async with watched() as watch, await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            with process(f"{ASKERS}:asking_client", port=listener.port, question=question) as asker:
                assert await asker.heard() == "asks"
                (link,) = [group.link for group in watch.groups]  # it may be lost by now
                with process(PUMP, port=listener.port) as bystander:
                    assert await bystander.heard() == "rdma"
                    await becomes_of(link, asker, question)
                    await get(bystander)
                    bystander.kill()
                asker.kill()
            tasks.cancel_scope.cancel()
        assert watch.most < FEW


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("question", OF_A_SERVER)
async def test_a_server_that_takes_no_answers(question: str) -> None:
    async with watched() as watch:
        with process(ECHO) as honest, process(f"{ASKERS}:asking_server", question=question) as asker:
            port = await honest.heard()
            async with await aiordma.connect(LOCAL, await asker.heard(), mode="rdma") as victim:
                (link,) = [group.link for group in watch.groups]
                await victim.send(b"?")
                assert await asker.heard() == "asks"
                async with await aiordma.connect(LOCAL, port, mode="rdma") as bystander:
                    await check_echo(bystander)
                    await becomes_of(link, asker, question)
                    await check_echo(bystander)
                    await check_end(bystander)
                asker.kill()
                victim.abort()
        assert watch.most < FEW
