"""nats-py against a server that speaks as much of NATS as it needs."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, port_of
from tests.streams.pairs import tls_contexts

nats: Any = pytest.importorskip("nats", reason="the extra aiordma[nats] is not installed")

INFO = b'INFO {"server_id":"X","version":"2.10.0","max_payload":1048576,"headers":true,"tls_required":%s}\r\n'


async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: Any = None) -> None:
    """A broker with one client: what it publishes goes to its subscription of the same subject."""
    writer.write(INFO % (b"false" if tls is None else b"true"))
    if tls is not None:
        await writer.start_tls(tls)
    subscriptions = {}
    while line := await reader.readline():
        word, *rest = line.split()
        if word == b"PING":
            writer.write(b"PONG\r\n")
        elif word == b"SUB":
            subscriptions[rest[0]] = rest[-1]
        elif word == b"PUB":
            payload = await reader.readexactly(int(rest[-1]) + 2)
            writer.write(b"MSG %s %s %s\r\n%s" % (rest[0], subscriptions[rest[0]], rest[-1], payload))
    writer.close()


async def exchange(client: Any) -> str:
    """One message to oneself; the path."""
    subscription = await client.subscribe("greeting")
    await client.publish("greeting", b"hello")
    assert (await subscription.next_msg(timeout=FULL_PATIENCE)).data == b"hello"
    path: str = client._transport._bare_io_writer.get_extra_info("aiordma.path")
    await client.close()
    return path


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_by_rdma(uvloop: bool, tls: bool) -> None:
    from aiordma.integrations.nats import connect

    client_context, server_context = tls_contexts()

    async def handle(reader: Any, writer: Any) -> None:
        await speak(reader, writer, server_context if tls else None)

    async def main() -> None:
        with anyio.fail_after(30):
            async with await aiordma.start_server(handle, LOCAL, 0) as server:
                options: dict[str, Any] = {"tls": client_context} if tls else {}
                client = await connect(f"nats://{LOCAL}:{port_of(server)}", **options)
                assert await exchange(client) == "rdma"

    import uvloop as module

    with asyncio.Runner(loop_factory=module.new_event_loop if uvloop else None) as runner:
        runner.run(main())


def test_a_plain_server_that_speaks_first() -> None:
    from aiordma.integrations.nats import connect

    async def main() -> None:
        with anyio.fail_after(30):
            async with await asyncio.start_server(speak, LOCAL, 0) as server:
                config = Config(head_start_ms=10)
                client = await connect(f"nats://{LOCAL}:{port_of(server)}", config=config)
                assert await exchange(client) == "tcp"

    asyncio.run(main())
