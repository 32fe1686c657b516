"""``python -m tests.hang`` tells a lost wake-up from a peer that has sent nothing."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from tests.hang import report
from tests.processes import PATIENCE, process
from tests.roles import LOCAL

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ASLEEP = r"armed: True; the completion channel's descriptor \d+ is readable: False"


async def until_nothing_moves(config: Config) -> None:
    """The engine sleeps, and nothing has come in many turns in which both ends could have gone on."""
    poller = (await engines.current(config)).poller
    last, unchanged = -1, 0
    while unchanged < 50 or not poller.is_armed:
        await anyio.sleep(0.01)
        unchanged = unchanged + 1 if poller.completions == last else 0
        last = poller.completions


async def reporter(control: Control) -> None:
    """A client that waits for its own silent server; its report, without and with a look at the queue."""

    async def stay_silent(stream: aiordma.RdmaStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async def wait_in_vain(port: int) -> None:
        async with await aiordma.connect(LOCAL, port, mode="rdma", config=config) as stream:
            await stream.receive()

    # Only completion events lead to a look at the queue, so nothing makes up for a lost one.
    config = Config(busy_poll_us=0, device="soft")
    async with await aiordma.listen(LOCAL, 0, config=config) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, stay_silent)
        tasks.start_soon(wait_in_vain, listener.port)
        await until_nothing_moves(config)
        with TemporaryDirectory() as folder:
            for drain in (False, True):
                report(str(path := Path(folder) / "report"), drain)
                control.say(path.read_text(encoding="utf-8"))
        await control.hear()


@pytest.mark.parametrize("faults", ["", "event=1"], ids=["a silent peer", "a lost event"])
async def test_report(anyio_backend_name: str, faults: str) -> None:
    environment = {"SOFTDEV_FAULTS": faults}
    loop = "trio" if anyio_backend_name == "trio" else "asyncio"
    with (
        process(f"{__name__}:reporter", loop=loop, env=environment) as program,
        anyio.fail_after(PATIENCE),
    ):
        looked, drained = await program.heard(), await program.heard()
        program.kill()
    assert "wait_in_vain" in looked
    assert re.search(ASLEEP, looked)
    assert "completions that were waiting" not in looked
    waiting = re.search(r"completions that were waiting in the queue: (\d+)", drained)
    assert waiting is not None
    assert (int(waiting[1]) > 0) == bool(faults)
