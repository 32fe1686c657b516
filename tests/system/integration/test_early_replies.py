"""Replies that are polled before the message that they answer has completed, which verbs allow.

The send and the receive queue of a queue pair are not ordered against each other, not even on one completion
queue. On the software device an acknowledgement can be held back while the peer's reply is not
(`a_reply_before_its_message`, in the device's own tests, shows the order).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.config import Config
from tests.health import check_end
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo

if TYPE_CHECKING:
    from tests.program import Control

LATE = {"AIORDMA_DEVICE": "soft", "SOFTDEV_FAULTS": "seed=3,delay=0.97"}


async def server(control: Control) -> None:
    service = rpc.Service("s")

    @service.method
    async def same(data: bytes) -> bytes:
        return data

    async with (
        await aiordma.listen(LOCAL) as listener,
        rpc.serve(service, LOCAL) as calls,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        control.say([listener.port, calls.port])
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def client(control: Control, port: int, calls: int) -> None:
    """Rings and queues are used several times over."""
    random = Random(2)
    config = Config.from_env(ring_bytes=16384)
    async with await aiordma.connect(LOCAL, port, mode="rdma", config=config) as stream:
        for _ in range(300):
            data = random.randbytes(random.choice((1, 900, 20_000)))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, data)
                got = b""
                while len(got) < len(data):
                    got += await stream.receive()
            assert got == data
        await check_end(stream)
    async with rpc.connect(LOCAL, calls, mode="rdma", config=config) as asking:
        for _ in range(100):
            data = random.randbytes(random.choice((1, 900, 100_000)))
            assert await asking.call("s.same", data, timeout=30) == data
    control.say("done")


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_before_their_message_has_completed(loop: str) -> None:
    with process(f"{__name__}:server", loop, LATE) as serving:
        port, calls = serving.hear()
        with process(f"{__name__}:client", loop, LATE, port=port, calls=calls) as asking:
            assert asking.hear() == "done"
