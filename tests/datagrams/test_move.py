"""A device fails: endpoints on it get another queue pair, on another device if possible; peers learn it."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.errors import Code, NegotiationError, VerbsError
from aiordma.proto.resolve import udp_proof
from aiordma.verbs import softlib
from tests.health import descriptors, endpoint_begun, until
from tests.links.devices.kit import NAMES, TWO, two_devices
from tests.processes import process
from tests.tuned import tuned

from .test_endpoint import LOCAL, open_at, parts_of
from .test_unreliable import ask_and_reset, faults

if TYPE_CHECKING:
    from aiordma.datagrams.endpoint import DatagramEndpoint

pytestmark = pytest.mark.anyio

WAYS = ("port", "device", "qp")
ECHO = "tests.datagrams.roles:failing_echo"


def device_of(endpoint: DatagramEndpoint) -> str:
    return parts_of(endpoint).engine.backend.name


def fail(way: str, *endpoints: DatagramEndpoint) -> None:
    """Their queue pairs, or the devices that they are on."""
    library = softlib.load()
    if way == "qp":
        for endpoint in endpoints:
            parts_of(endpoint).qp.to_error()
    for name in sorted({device_of(endpoint) for endpoint in endpoints}):
        if way == "port":
            library.port(name, up=False)
        elif way == "device":
            library.kill(name)


async def open_on(mode: str = "rdma", *, retry_ms: int = 3_600_000, devices: int = 2) -> DatagramEndpoint:
    config = tuned(**{**TWO, "soft_devices": devices, "device_retry_ms": retry_ms})
    return await open_at(mode, config=config)


async def exchange(one: DatagramEndpoint, other: DatagramEndpoint) -> None:
    """A datagram in each direction, by RDMA."""
    assert await one.resolve(other.local_address) == "rdma"
    await one.send((b"forth", other.local_address))
    assert await other.receive() == (b"forth", one.local_address)
    assert await other.resolve(one.local_address) == "rdma"
    await other.send((b"back", one.local_address))
    assert await one.receive() == (b"back", other.local_address)


@pytest.mark.parametrize("mode", ["rdma", "auto"])
@pytest.mark.parametrize("way", WAYS)
async def test_both_ends_move_at_once(way: str, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two_devices():
        async with await open_on(mode) as one, await open_on(mode) as other:
            await exchange(one, other)
            assert device_of(one) == device_of(other) == "soft0"
            former = parts_of(one).qp.number, parts_of(other).qp.number
            fail(way, one, other)
            await until(lambda: one.statistics().moves == other.statistics().moves == 1)
            assert device_of(one) == device_of(other) == "soft1"
            assert former != (parts_of(one).qp.number, parts_of(other).qp.number)
            # The end that had asked does so again, without being used.
            await until(lambda: one.path_to(other.local_address) == "rdma")
            await exchange(one, other)
            assert one.fallback_reason is None
            assert one.max_message_bytes == parts_of(one).mtu
            assert "has another one on soft1" in caplog.text
            # Counters go on.
            assert one.statistics()[:4] == other.statistics()[:4] == (2, 0, 2, 0)


async def test_one_end_moves_and_the_other_learns_it() -> None:
    async with two_devices(), await open_on() as one, await open_on() as other:
        await exchange(one, other)
        for count, mover in enumerate((one, other, one, other)):
            fail("qp", mover)
            await until(lambda count=count: one.statistics().moves + other.statistics().moves == count + 1)  # type: ignore[misc]
            # What is sent before the peer knows is lost.
            await until(lambda: one.statistics().peers_rdma == other.statistics().peers_rdma == 1)
            await exchange(one, other)


class Flow:
    """Numbered datagrams of one direction; what arrives is checked against what was sent."""

    def __init__(self, source: DatagramEndpoint, target: DatagramEndpoint, seed: int) -> None:
        self.source, self.target, self.seed = source, target, seed
        self.sent = 0
        self.got: Counter[int] = Counter()

    def message(self, number: int) -> bytes:
        random = Random(self.seed * 1_000_000 + number)
        return number.to_bytes(4) + random.randbytes(random.choice((0, 5, 300, 1000, 4092)))

    async def send(self) -> None:
        while True:
            await self.source.send((self.message(self.sent), self.target.local_address))
            self.sent += 1
            if self.sent % 16 == 0:
                await anyio.lowlevel.checkpoint()

    async def receive(self) -> None:
        while True:
            for data, sender in await self.target.receive_many():
                assert sender == self.source.local_address
                number = int.from_bytes(data[:4])
                assert number < self.sent + 1
                assert data == self.message(number)
                self.got[number] += 1

    async def moves_on(self) -> None:
        """A few that are sent from now on arrive."""
        start = self.sent
        await until(lambda: sum(number > start for number in list(self.got)[-200:]) > 20)


@pytest.mark.parametrize("way", WAYS)
async def test_under_load_to_and_fro(way: str) -> None:
    """The device fails again and again: datagrams are lost, and none is changed or comes twice."""
    seed = Random().randrange(1 << 20)
    print("seed", seed)
    async with two_devices():
        async with await open_on() as one, await open_on() as other:
            await exchange(one, other)
            flows = Flow(one, other, seed), Flow(other, one, seed + 1)
            async with anyio.create_task_group() as tasks:
                for flow in flows:
                    tasks.start_soon(flow.send)
                    tasks.start_soon(flow.receive)
                for count in range(6):
                    for flow in flows:
                        await flow.moves_on()
                    movers = (one, other) if way != "qp" else ((one, other)[count % 2],)
                    before = [mover.statistics().moves for mover in movers]
                    fail(way, *movers)
                    await until(
                        lambda before=before, movers=movers: all(  # type: ignore[misc]
                            mover.statistics().moves > moves
                            for mover, moves in zip(movers, before, strict=True)
                        )
                    )
                    for flow in flows:
                        await flow.moves_on()
                    for name in NAMES:
                        softlib.load().port(name, up=True)
                tasks.cancel_scope.cancel()
            for flow in flows:
                assert max(flow.got.values()) == 1
            assert one.statistics().sent_udp == other.statistics().sent_udp == 0


async def test_a_receiver_that_waits_is_woken_after_the_move() -> None:
    async with two_devices(), await open_on() as one, await open_on() as other:
        await exchange(one, other)
        got: list[bytes] = []

        async def receive() -> None:
            got.append((await other.receive())[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            fail("port", one, other)
            await until(lambda: one.path_to(other.local_address) == "rdma" and one.statistics().moves == 1)
            await one.send((b"after the move", other.local_address))
        assert got == [b"after the move"]


async def test_cancelled_between_two_devices() -> None:
    """Whatever a task waits for while its endpoint moves: cancelled, it has done nothing; others go on."""
    async with two_devices(), await open_on() as one, await open_on() as other:
        await exchange(one, other)
        for turn in range(12):
            for name in NAMES:
                softlib.load().port(name, up=True)
            fail("port", one, other)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(one.send, (b"cancelled or lost", other.local_address))
                    tasks.start_soon(one.resolve, other.local_address)
                    tasks.start_soon(other.receive)
                    for _ in range(turn):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            await until(lambda turn=turn: one.statistics().moves == other.statistics().moves == turn + 1)  # type: ignore[misc]
            assert await one.resolve(other.local_address) == "rdma"
            await one.send((b"after it", other.local_address))
            while (await other.receive())[0] != b"after it":
                pass


@pytest.mark.parametrize("way", ["port", "qp"])
async def test_closed_between_two_devices(way: str) -> None:
    usual = 0
    for turn in range(8):
        async with two_devices():
            async with await open_on() as one, await open_on() as other:
                await exchange(one, other)
                fail(way, one, other)
                for _ in range(turn):
                    await anyio.lowlevel.checkpoint()
        if turn == 1:
            await endpoint_begun()
            usual = len(descriptors())
        elif turn > 1:
            await until(lambda usual=usual: len(descriptors()) <= usual)  # type: ignore[misc]


async def test_nothing_is_left_of_queue_pairs_that_were_left() -> None:
    async with two_devices() as devices, await open_on() as one, await open_on() as other:
        await exchange(one, other)
        counts = []
        for _ in range(10):
            fail("port", one, other)
            moved = one.statistics().moves + 1
            await until(lambda moved=moved: one.statistics().moves == other.statistics().moves == moved)  # type: ignore[misc]
            for name in NAMES:
                softlib.load().port(name, up=True)
            await until(lambda: one.statistics().peers_rdma == other.statistics().peers_rdma == 1)
            await exchange(one, other)
            pools = sum(engine.pool.statistics().used_bytes for engine in devices.engines)
            reserved = sum(engine.cache.limit for engine in devices.engines)
            counts.append((len(descriptors()), pools, reserved))
        assert counts[9][0] <= counts[3][0]
        assert counts[9][1:] == counts[3][1:]


async def test_without_another_device_udp_is_used_until_one_is_back() -> None:
    async with two_devices() as devices, await open_on("auto") as one, await open_on("auto") as other:
        await exchange(one, other)
        # A device that was never opened reports nothing.
        fail("port", one, other)
        await until(lambda: one.path_to(other.local_address) == "rdma" and device_of(one) == "soft1")
        fail("port", one, other)
        await until(lambda: one.fallback_reason is not None and other.fallback_reason is not None)
        reason = one.fallback_reason
        assert reason is not None
        assert reason.code == Code.DEVICE_FAILURE
        assert "PORT_ERR" in reason.text
        assert await one.resolve(other.local_address) == "udp"
        await one.send((b"by UDP", other.local_address))
        assert await other.receive() == (b"by UDP", one.local_address)
        assert one.statistics().sent_udp == 1
        softlib.load().port("soft1", up=True)
        # Nobody sends: the peers that were reached by RDMA are asked again.
        await until(lambda: one.path_to(other.local_address) == "rdma")
        assert device_of(one) == device_of(other) == "soft1"
        assert one.fallback_reason is None
        await exchange(one, other)
        assert not devices.health.why_down(1)


async def test_a_device_without_a_protection_domain_to_spare_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """UDP is used, with the reason, both by an endpoint that moves and by one that is opened."""

    def alloc_pd(_: object) -> None:
        raise VerbsError(errno.ENOMEM, "ibv_alloc_pd")

    async with two_devices(), await open_on("auto") as one, await open_on("auto") as other:
        await exchange(one, other)
        backend = type(parts_of(one).engine.backend)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "alloc_pd", alloc_pd)
            fail("qp", one)
            await until(lambda: one.fallback_reason is not None)
            reason = one.fallback_reason
            assert reason is not None
            assert "ibv_alloc_pd" in reason.text
            async with await open_on("auto") as third:
                reason = third.fallback_reason
                assert reason is not None
                assert "ibv_alloc_pd" in reason.text
            await one.send((b"by UDP", other.local_address))
            assert await other.receive() == (b"by UDP", one.local_address)
        assert one._device is not None
        one._device._on_recovered()
        await until(lambda: one.path_to(other.local_address) == "rdma")
        await exchange(one, other)


async def test_a_lone_device_is_used_again_when_its_port_is_up() -> None:
    async with two_devices(soft_devices=1):
        one, other = await open_on("auto", devices=1), await open_on("rdma", devices=1)
        async with one, other:
            await exchange(one, other)
            softlib.load().port("soft0", up=False)
            await until(lambda: one.fallback_reason is not None and other.fallback_reason is not None)
            assert one.max_message_bytes == 65507
            with pytest.raises(NegotiationError) as caught:
                await other.send((b"not by UDP", one.local_address))
            assert caught.value.code == Code.DEVICE_FAILURE
            softlib.load().port("soft0", up=True)
            await until(lambda: one.path_to(other.local_address) == "rdma")
            await exchange(one, other)


async def test_a_queue_pair_that_fails_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """After a few it stays on UDP for a while, and then tries again."""
    caplog.set_level(logging.INFO, "aiordma.datagram")
    async with two_devices(soft_devices=1):
        one, other = [await open_on("auto", devices=1, retry_ms=100) for _ in range(2)]
        async with one, other:
            await exchange(one, other)
            with faults("error=1"):
                while one.fallback_reason is None:
                    await one.send((b"lost", other.local_address))
                    await anyio.lowlevel.checkpoint()
            assert 1 <= one.statistics().moves <= 3
            await one.send((b"by UDP", other.local_address))
            while (await other.receive())[0] != b"by UDP":
                pass
            await until(lambda: one.fallback_reason is None)
            assert "has a queue pair again, on soft0" in caplog.text
            await exchange(one, other)


async def test_many_peers_are_asked_again() -> None:
    async with two_devices(), await open_on() as server:
        clients = [await open_on() for _ in range(20)]
        for number, client in enumerate(clients):
            # Either end has asked.
            asks, asked = (server, client) if number % 2 else (client, server)
            await exchange(asks, asked)
        fail("qp", server)
        await until(lambda: server.statistics().moves == 1)
        await until(lambda: server.statistics().peers_rdma == len(clients), server.statistics)
        for client in clients:
            await exchange(server, client)
            await client.aclose()


async def test_a_late_proof_is_no_data() -> None:
    """The proofs of a query that is over may still be under way."""
    async with two_devices(), await open_on("auto") as one, await open_on("auto") as other:
        await exchange(one, other)
        (nonce,) = other._table.resolver._queries
        fail("qp", other)
        await until(lambda: other.statistics().moves == 1)
        await until(lambda: other.path_to(one.local_address) == "rdma")
        one._sock.sendto(udp_proof(nonce), other.local_address)
        await exchange(one, other)
        with pytest.raises(anyio.WouldBlock):
            other.receive_nowait()


async def test_who_asked_and_reset_the_connection_does_not_stop_the_move() -> None:
    async with two_devices(), await open_on() as one, await open_on() as other:
        ask_and_reset(other, 50)
        await exchange(one, other)
        old = parts_of(other)
        fail("qp", other)
        await until(lambda: other.statistics().moves == 1)
        assert old._closed
        await until(lambda: other.path_to(one.local_address) == "rdma")
        await exchange(one, other)


@pytest.mark.parametrize("where", ["here", "there"])
async def test_another_process(where: str) -> None:
    """A device fails at one end; the other end has one device only."""
    mine, theirs = (2, 1) if where == "here" else (1, 2)
    with process(ECHO, soft_devices=theirs) as peer:
        address = (LOCAL, await peer.heard())
        async with two_devices(soft_devices=mine), await open_on(devices=mine) as one:
            for count in range(3):
                assert await one.resolve(address) == "rdma"
                await one.send((b"%d" % count, address))
                assert await one.receive() == (b"%d" % count, address)
                if where == "here":
                    fail("port", one)
                    await until(lambda count=count: one.statistics().moves == count + 1)  # type: ignore[misc]
                    for name in NAMES:
                        softlib.load().port(name, up=True)
                else:
                    route = one._peers[address].route
                    peer.say("port")
                    await until(
                        lambda route=route: (  # type: ignore[misc]
                            (known := one._peers.get(address)) is not None
                            and known.route not in (None, route)
                        )
                    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_transport_tells_the_path() -> None:
    import asyncio

    async with two_devices():
        transport, _ = await aiordma.create_datagram_endpoint(
            asyncio.DatagramProtocol, (LOCAL, 0), config=tuned(**TWO)
        )
        assert transport.get_extra_info("aiordma.path") == "rdma"
        for name in NAMES:
            softlib.load().port(name, up=False)
        await until(lambda: transport.get_extra_info("aiordma.path") == "udp")
        assert transport.get_extra_info("aiordma.fallback_reason").code == Code.DEVICE_FAILURE
        softlib.load().port("soft0", up=True)
        await until(lambda: transport.get_extra_info("aiordma.path") == "rdma")
        assert transport.get_extra_info("aiordma.fallback_reason") is None
        transport.abort()


async def test_a_peer_that_says_it_has_moved_and_has_not() -> None:
    """It is asked again each time, and nothing else happens."""
    async with two_devices(), await open_on() as one, await open_on() as other:
        await exchange(one, other)
        for _ in range(10):
            (peer,) = other._peers.values()
            known = one._peers[other.local_address].route
            for sock in peer.links:
                sock.send(b"MMMM")
            await until(
                lambda known=known: (  # type: ignore[misc]
                    (asked := one._peers.get(other.local_address)) is not None
                    and asked.route not in (None, known)
                )
            )
            await exchange(one, other)
        assert one.statistics().moves == other.statistics().moves == 0
