"""What shows that a peer is a kernel's SMC-R, beside stat: metrics and captures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiordma
from aiordma import faults
from aiordma.observe import capture, readings
from tests.kernel_option import options
from tests.kernel_peer import CONFIG, Kernel, engine, kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["engine", "kernel", "options"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
    pytest.mark.usefixtures("options"),
]

#: Where data begin behind the headers of IPv4 and TCP.
TCP_DATA = 40
#: Where IP's header ends, by its first byte; behind that and UDP's are the operation, and its data.
IP_ENDS, OPERATION, DATA = {0x45: 20, 0x60: 40}, 8, 20
SEND_ONLY, WRITE_ONLY = 0x04, 0x0A
CDC, CONFIRM_LINK, CLC = 0xFE, 0x21, b"\xe2\xd4\xc3\xd9"


@pytest.fixture
def captured() -> Iterator[capture.Capture]:
    made = capture.start()
    faults.listen_in(made.on_link, made.message_bytes)
    yield made
    faults.listen_in(None)
    capture.stop()


async def test_metrics_and_captures(kernel: Kernel, captured: capture.Capture) -> None:
    before = readings.read()
    ours, (theirs, _) = await asyncio.gather(aiordma.connect(*kernel.address, config=CONFIG), kernel.accept())
    await ours.send(b"hello")
    assert await theirs.receive() == b"hello"
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await kernel.connect(listener.port)
        served = await listener.accept()
        await theirs.send(b"hello")
        assert await served.receive() == b"hello"
    new = {metric.name: values - before[metric] for metric, values in readings.read().items()}
    assert new["smcr_connections"] == {("client",): 1, ("server",): 1}
    assert new["connections"] == {("stream", "client", "rdma"): 1, ("stream", "server", "rdma"): 1}
    packets = [packet.data for packet in captured.packets()]
    negotiations = [data[TCP_DATA:] for data in packets if data[TCP_DATA:].startswith(CLC)]
    assert [data[4] for data in negotiations] == [1, 2, 3] * 2
    assert {data[41:45] for data in negotiations if data[4] > 1} == {bytes(4)}  # keys
    requests = [data[IP_ENDS[data[0]] :] for data in packets if not data[TCP_DATA:].startswith(CLC)]
    assert {data[DATA] for data in requests if data[OPERATION] == SEND_ONLY} == {CDC, CONFIRM_LINK}
    assert {data[OPERATION] for data in requests} == {SEND_ONLY, WRITE_ONLY}
    for stream in ours, served:
        stream.abort()
