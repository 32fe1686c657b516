"""`aiordma adm switch rdma` between two processes, whose queue pairs serve one link after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.admin.messages import Connections
from tests.admin.looking import ask_one, rows
from tests.cli.adm.test_command import run
from tests.health import check_echo, nothing_left, until
from tests.processes import process
from tests.roles import LOCAL
from tests.world import DEVICE

from .breaking import take_off
from .test_reused_numbers import UNREAD, WHOLE, pipe_of

if TYPE_CHECKING:
    from tests.processes import Process

pytestmark = pytest.mark.anyio

ROUNDS = 10
ROLE = "tests.roles:echo_server"


async def in_thread(function: Any, *arguments: Any) -> Any:
    """The other process needs this loop while it is asked."""
    return await anyio.to_thread.run_sync(function, *arguments)


async def on_tcp(other: Process, count: int) -> None:
    """Its ends have left, too."""
    while True:
        found = rows(await in_thread(ask_one, other.pid), Connections)
        if [row.path for row in found] == ["tcp"] * count:
            return


async def test_all_go_back_in_each_round() -> None:
    """Beside a reader that is slow, after a link that was lost."""
    with process(ROLE, device=DEVICE) as other:
        port = await other.heard()
        async with nothing_left() as engine:
            if engine.backend.by_cm:
                pytest.skip("rdma_cm binds a queue pair to one link")
            streams = [await aiordma.connect(LOCAL, port, config=WHOLE, mode="rdma") for _ in range(5)]
            *quick, slow = streams
            numbers: set[int] = set()
            for turn in range(ROUNDS):
                # The end that asks is the client of the new link.
                numbers.update(group.link.peer_qpn for group in engine.groups.values())
                await slow.send(UNREAD)
                await until(lambda: pipe_of(slow).ring.readable >= len(UNREAD))
                take_off(engine, "link")
                await until(lambda: all(stream.path == "tcp" for stream in quick))
                with anyio.fail_after(30):
                    await on_tcp(other, len(streams))
                done = await in_thread(run, other, "switch", "rdma")
                assert (done.exit_code, done.stderr) == (0, ""), turn
                await until(lambda: all(stream.path == "rdma" for stream in streams))
                for stream in quick:
                    await check_echo(stream, b"x" * 1000)
            # That end has read all, so its queue pairs are free for the next link.
            assert len(numbers) < ROUNDS
            assert await slow.receive_exactly(ROUNDS * len(UNREAD)) == UNREAD * ROUNDS
            for stream in streams:
                await stream.aclose()
