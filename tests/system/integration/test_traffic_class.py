"""Traffic classes of connections: a link for each, which all that belongs to it stays on, and its packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import rpc
from aiordma.config import Config
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.links.failover.leave import switch_back, switch_pipe
from tests.health import check_echo, nothing_left, until
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.softdev.test_capture import tshark
from tests.system.integration.test_iwarp import BY_CM
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiordma.links.engine import Engine
    from tests.program import Control

pytestmark = pytest.mark.anyio

BULK, URGENT = 10 << 2 | 2, 26 << 2 | 2


def config(traffic_class: int) -> Config:
    return Config(device=DEVICE, traffic_class=traffic_class)


def streams_by_class(engine: Engine) -> dict[tuple[str, int], int]:
    """Streams at both ends: (our part, class) to their number, of the links that have any."""
    found: dict[tuple[str, int], int] = {}
    for link in engine.statistics()["links"]:
        if link["connections"]:
            key = (link["side"], link["traffic_class"])
            assert key not in found, "two links of one class"
            found[key] = link["connections"]
    return found


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = await aiordma.listen(LOCAL, 0, config=config(URGENT))
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield listener.port
        tasks.cancel_scope.cancel()


async def connect(port: int, traffic_class: int) -> aiordma.RdmaStream:
    return await aiordma.connect(LOCAL, port, mode="rdma", config=config(traffic_class))


async def test_each_class_has_a_link_and_its_own_tickets(port: int) -> None:
    """Also the third connection of a class, which begins with a ticket of its link."""
    async with nothing_left() as engine:
        streams = []
        for round_ in range(1, 5):
            for traffic_class in (BULK, URGENT):
                stream = await connect(port, traffic_class)
                streams.append(stream)
                await check_echo(stream, b"%d of %d" % (round_, traffic_class))
            expected = {(side, c): round_ for side in ("client", "server") for c in (BULK, URGENT)}
            assert streams_by_class(engine) == expected
            holders = [group.holder for group in engine.all_groups if group.holder is not None]
            await until(lambda: round_ < 2 or all(map(len, holders)))  # noqa: B023
        assert {traffic_class for _, traffic_class in engine.early_servers} == {BULK, URGENT}
        for stream in streams:
            await stream.aclose()


async def test_a_stream_comes_back_to_its_class(port: int) -> None:
    async with nothing_left() as engine:
        others = [await connect(port, c) for c in (engine.config.traffic_class, URGENT)]
        stream = await connect(port, BULK)
        before = streams_by_class(engine)
        assert switch_pipe(stream._pipe)  # type: ignore[arg-type]
        while stream.path == "rdma":
            await anyio.lowlevel.checkpoint()
        await check_echo(stream)
        await until(lambda: (("server", BULK) in streams_by_class(engine)) is False)
        await switch_back(stream._pipe)  # type: ignore[arg-type]
        await check_echo(stream)
        assert stream.path == "rdma"
        assert streams_by_class(engine) == before
        for each in (stream, *others):
            await each.aclose()


@pytest.mark.parametrize("wrong", [-1, 256, 4.5, "46"])
def test_what_is_no_class(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"traffic_class=.*0 to 255"):
        Config(traffic_class=wrong)


# ---- what is sent


async def everything(control: Control, urgent: int, bulk: int) -> None:
    """A stream of one class; calls and datagrams of another. Both ends are here."""

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
        async with await aiordma.connect(
            LOCAL, listener.port, mode="rdma", config=Config.from_env(traffic_class=urgent)
        ) as stream:
            await check_echo(stream)
        quiet = Config.from_env(traffic_class=bulk)
        async with rpc.connect(LOCAL, calls.port, mode="rdma", config=quiet) as client:
            assert await client.call("s.same", b"x" * 100_000, timeout=30) == b"x" * 100_000
        async with (
            await open_datagram_endpoint((LOCAL, 0), mode="rdma", config=quiet) as one,
            await open_datagram_endpoint((LOCAL, 0), mode="rdma", config=quiet) as other,
        ):
            await one.send((b"hello", other.local_address))
            assert (await other.receive())[0] == b"hello"
        control.say("done")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("loop", LOOPS)
def test_packets(loop: str, tmp_path: Path) -> None:
    capture = tmp_path / "packets.pcapng"
    env = {"AIORDMA_DEVICE": "soft", "SOFTDEV_WIRE": "only", "SOFTDEV_CAPTURE": str(capture)}
    with process(f"{__name__}:everything", loop, env, urgent=URGENT, bulk=BULK) as both:
        assert both.hear() == "done"
    seen: dict[str, set[int]] = {}
    # The address is IPv6's where there is loopback only.
    fields = ("infiniband.bth.opcode", "ip.dsfield.dscp", "ipv6.tclass.dscp")
    for line in tshark(capture, "-T", "fields", *[part for field in fields for part in ("-e", field)]):
        opcode, dscp = map(int, line.split())
        seen.setdefault("UD" if opcode >> 5 == 3 else "RC", set()).add(dscp)
    assert seen == {"RC": {URGENT >> 2, BULK >> 2}, "UD": {BULK >> 2}}


async def two_streams(control: Control, urgent: int, bulk: int) -> None:
    """One of each class. Both ends are here."""
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        for traffic_class in (urgent, bulk):
            async with await aiordma.connect(
                LOCAL, listener.port, mode="rdma", config=Config.from_env(traffic_class=traffic_class)
            ) as stream:
                await check_echo(stream)
        control.say("done")
        tasks.cancel_scope.cancel()


def test_packets_of_connections_made_by_rdma_cm(tmp_path: Path) -> None:
    """As on iWARP. There TCP decides on the bits for ECN."""
    capture = tmp_path / "packets.pcapng"
    env = {**BY_CM, "SOFTDEV_WIRE": "only", "SOFTDEV_CAPTURE": str(capture)}
    with process(f"{__name__}:two_streams", "asyncio", env, urgent=URGENT, bulk=BULK) as both:
        assert both.hear() == "done"
    seen = set()
    fields = ("infiniband.bth.destqp", "ip.dsfield.dscp")
    for line in tshark(capture, "-T", "fields", *[part for field in fields for part in ("-e", field)]):
        qpn, dscp = (int(field, 0) for field in line.split())
        if qpn != 1:  # the connection manager's own
            seen.add(dscp)
    assert seen == {URGENT >> 2, BULK >> 2}
