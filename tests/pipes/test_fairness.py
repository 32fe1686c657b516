"""Streams of a link whose slow device has its send queue full nearly all the time: each gets its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import faults
from aiordma.streams.stream import RdmaStream
from tests.streams.pairs import ONE, OTHER

from .link_pairs import connect

if TYPE_CHECKING:
    from aiordma.pipes._switchable import SwitchablePipe

    from .link_pairs import Open

pytestmark = pytest.mark.anyio


def over(pipe: SwitchablePipe) -> RdmaStream:
    return RdmaStream(pipe, local_address=ONE, remote_address=OTHER)


@pytest.mark.parametrize("inline", [1 << 20, 1], ids=["inline", "from registered memory"])
async def test_every_sender_gets_on(open_engine: Open, inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that always has something to send would take every work request that comes back."""
    sizes = (1, 400, 70_000, 1)
    with faults.injected("delay p=0.3 ms=1"):
        async with open_engine(max_outstanding_wrs=4) as engine:
            monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
            pairs = [await connect(engine) for _ in sizes]
            senders, receivers = [over(one) for one, _ in pairs], [over(other) for _, other in pairs]
            sent = [0] * len(sizes)

            async def send(number: int) -> None:
                stream = senders[number]
                while True:
                    await stream.send(bytes(sizes[number]))
                    sent[number] += 1
                    if min(sent) >= 10:
                        tasks.cancel_scope.cancel()

            async def receive(number: int) -> None:
                while True:
                    await receivers[number].receive()

            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    for number in range(len(sizes)):
                        tasks.start_soon(send, number)
                        tasks.start_soon(receive, number)
            for stream in (*senders, *receivers):
                await anyio.aclose_forcefully(stream)
