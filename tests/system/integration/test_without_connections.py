"""Everything on a device without connections (RC), as EFA by plain verbs: by TCP and UDP, and told why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma import rpc
from aiordma.datagrams.connection import connect_datagram
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.errors import Code, NegotiationError
from tests.health import check_echo
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL
from tests.system.integration import everything

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.system.integration.test_without_connections"
EFA = {"SOFTDEV_PERSONALITY": "efa", "AIORDMA_DEVICE": "soft"}


async def server(control: Control) -> None:
    """Says the ports."""
    async with everything.serve() as ports:
        control.say(list(ports))
        await control.heard_all()


async def client(control: Control, streams: int, datagrams: int, calls: int) -> None:
    """Uses all; says by which paths, and why not by RDMA."""
    async with await aiordma.connect(LOCAL, streams) as stream:
        await check_echo(stream, bytes(range(256)) * 300)
        paths: list[str | None] = [stream.path]
    async with await connect_datagram(LOCAL, datagrams) as connection:
        await connection.send(b"a message")
        assert await connection.receive() == b"a message"
        paths.append(connection.path)
    async with rpc.connect(LOCAL, calls) as caller:
        assert await caller.call("mirror.reverse", b"call", timeout=30) == b"llac"
        paths.append(caller.path)
    async with await open_datagram_endpoint((LOCAL, 0)) as endpoint:
        await endpoint.send((b"by UDP", endpoint.local_address))
        data, sender = await endpoint.receive()
        assert data == b"by UDP"
        paths.append(endpoint.path_to(sender))
    control.say(paths)

    async def refused(call: Callable[..., Awaitable[Any]], *address: Any) -> None:
        try:
            await call(*address, mode="rdma")
        except NegotiationError as error:
            control.say([error.code, str(error)])

    await refused(aiordma.connect, LOCAL, streams)
    await refused(connect_datagram, LOCAL, datagrams)
    await refused(open_datagram_endpoint, (LOCAL, 0))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("verbs", ["auto", "own"])
def test_everything_falls_back_and_says_why(verbs: str, loop: str) -> None:
    env = EFA | {"AIORDMA_VERBS": verbs}
    with process(f"{HERE}:server", loop, env) as serving:
        streams, datagrams, calls = serving.hear()
        with process(f"{HERE}:client", loop, env, streams=streams, datagrams=datagrams, calls=calls) as using:
            assert using.hear() == ["tcp", "tcp", "tcp", "udp"]
            for _ in range(3):
                code, text = using.hear()
                assert code == Code.NO_SMCR_DEVICE
                assert "ibv_create_qp: Operation not supported (RC" in text
