"""Everything on devices without immediate data, as of iWARP: the window's 32 bits lead each message.

The software device takes the part of one and refuses what those do not have: a single SEND with immediate
data, atomic, or READ into memory that is closed to the peer would break the connection, and the test."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import aiordma
from aiordma import rpc
from aiordma.datagrams.connection import connect_datagram
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.errors import Code, NegotiationError
from aiordma.links.engine import current
from tests.health import check_echo
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL
from tests.system.integration import everything

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.system.integration.test_iwarp"
IWARP = {"SOFTDEV_PERSONALITY": "iwarp", "AIORDMA_DEVICE": "soft"}
WIRE = {**IWARP, "SOFTDEV_WIRE": "only"}  # everything as packets
BY_CM = {**IWARP, "SOFTDEV_PERSONALITY": "siw"}  # and only rdma_cm connects queue pairs
SIZES = [0, 1, 64, 4092, 4096, 4100, 5000, 70_000, 1_000_000]


def messages() -> list[bytes]:
    rng = random.Random(7)
    return [rng.randbytes(size) for size in SIZES]


async def server(control: Control) -> None:
    """Says whether its device is an iWARP adapter, and the ports."""
    async with everything.serve() as ports:
        control.say([(await current()).backend.is_iwarp, *ports])
        await control.heard_all()


async def client(control: Control, streams: int, datagrams: int, calls: int) -> None:
    """Uses all three; says by which paths."""
    async with await aiordma.connect(LOCAL, streams, mode="rdma") as stream:
        for data in messages():
            await check_echo(stream, data)
        paths = [stream.path]
    async with await connect_datagram(LOCAL, datagrams, mode="rdma") as connection:
        for data in messages():
            if len(data) <= connection.max_message_bytes:
                await connection.send(data)
                assert await connection.receive() == data
        paths.append(connection.path)
    async with rpc.connect(LOCAL, calls, mode="rdma") as caller:
        for data in messages():
            assert await caller.call("mirror.reverse", data, timeout=30) == data[::-1]
        async with caller.stream("mirror.count", 500) as numbers:
            assert [number async for number in numbers] == list(range(500))
        paths.append(caller.path)
    control.say(paths)


async def endpoint_client(control: Control) -> None:
    """Connectionless datagrams are what iWARP has not got."""
    try:
        await open_datagram_endpoint((LOCAL, 0), mode="rdma")
    except NegotiationError as error:
        control.say([error.code, str(error)])
    async with await open_datagram_endpoint((LOCAL, 0)) as endpoint:
        await endpoint.send((b"by UDP", endpoint.local_address))
        data, sender = await endpoint.receive()
        control.say([data.decode(), endpoint.path_to(sender)])


@pytest.mark.parametrize(
    "env", [IWARP, WIRE, BY_CM, {**WIRE, **BY_CM}], ids=["memory", "packets", "cm", "cm-packets"]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_everything(loop: str, env: dict[str, str]) -> None:
    with process(f"{HERE}:server", loop, env) as serving:
        is_iwarp, streams, datagrams, calls = serving.hear()
        assert is_iwarp
        with process(f"{HERE}:client", loop, env, streams=streams, datagrams=datagrams, calls=calls) as using:
            assert using.hear() == ["rdma", "rdma", "rdma"]


@pytest.mark.parametrize("loop", LOOPS)
def test_no_connectionless_datagrams(loop: str) -> None:
    with process(f"{HERE}:endpoint_client", loop, IWARP) as asking:
        code, text = asking.hear()
        assert code == Code.NO_SMCR_DEVICE
        assert "iWARP has no datagrams" in text
        assert asking.hear() == ["by UDP", "udp"]
