"""Datagrams without connections: behaviour over RDMA, over UDP, and between the two."""

from __future__ import annotations

import contextlib
import errno
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute

import aiordma
from aiordma.attributes import RdmaAttribute
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.links import engine as engines
from tests.cancelling import at_turn
from tests.health import descriptors, endpoint_begun, until
from tests.processes import PATIENCE, process
from tests.streams.pairs import tcp_sockets
from tests.virtual import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.datagrams.endpoint import DatagramEndpoint
    from aiordma.datagrams.ud_resources import UdParts

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"
Pair = tuple["DatagramEndpoint", "DatagramEndpoint"]
MODES = {
    "rdma": ("rdma", "rdma"),
    "udp": ("tcp", "tcp"),
    "to udp": ("auto", "tcp"),
    "from udp": ("tcp", "auto"),
}


async def open_at(mode: str = "auto", **options: object) -> DatagramEndpoint:
    return await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode, **options)  # type: ignore[arg-type]


def parts_of(endpoint: DatagramEndpoint) -> UdParts:
    """What it holds of the device."""
    assert endpoint._device is not None
    parts = endpoint._device.parts
    assert parts is not None
    return parts


@pytest.fixture(params=MODES)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """The path from the first to the second is resolved."""
    one, other = [await open_at(mode) for mode in MODES[request.param]]
    path = await one.resolve(other.local_address)
    assert path == ("rdma" if request.param == "rdma" else "udp")
    yield one, other
    await one.aclose()
    await other.aclose()


@pytest.fixture
async def rdma_pair() -> AsyncIterator[Pair]:
    one, other = await open_at("rdma"), await open_at("rdma")
    assert await one.resolve(other.local_address) == "rdma"
    yield one, other
    await one.aclose()
    await other.aclose()


async def test_datagrams_come_with_their_sender(pair: Pair) -> None:
    one, other = pair
    most = min(4096, one.max_message_bytes, other.max_message_bytes)
    for data in (b"", b"x", b"hello" * 100, bytes(most)):
        await one.send((data, other.local_address))
        assert await other.receive() == (data, one.local_address)
        await other.sendto(data[::-1], *one.local_address)
        assert await one.receive() == (data[::-1], other.local_address)
    for item in (bytearray(b"ab"), memoryview(b"cdefgh")[::1].cast("H")):
        await one.send((item, other.local_address))
        assert (await other.receive())[0] == bytes(item)
    with pytest.raises(anyio.WouldBlock):
        other.receive_nowait()
    one.send_nowait((b"now", other.local_address))
    assert await other.receive_many() == [(b"now", one.local_address)]
    with pytest.raises(ValueError, match="at least 1"):
        await other.receive_many(0)


async def test_what_is_too_long_is_refused(pair: Pair) -> None:
    one, other = pair
    # The path MTU, 1024 for rxe on an interface of 1500, or UDP's limit.
    assert one.max_message_bytes in (1024, 4096, 65507)
    with pytest.raises(OSError, match="message too long") as caught:
        await one.send((bytes(one.max_message_bytes + 1), other.local_address))
    assert caught.value.errno == errno.EMSGSIZE
    await one.send((b"fits", other.local_address))
    assert (await other.receive())[0] == b"fits"


async def test_statistics_tell_the_way(pair: Pair) -> None:
    one, other = pair
    for number in range(10):
        await one.send((b"%d" % number, other.local_address))
        await other.receive()
    sent, received = one.statistics(), other.statistics()
    if one.path_to(other.local_address) == "rdma":
        assert (sent.sent_rdma, sent.sent_udp, received.received_rdma, received.received_udp) == (
            10,
            0,
            10,
            0,
        )
        assert (sent.peers_rdma, received.peers_rdma) == (1, 1)
        assert one.reason_for(other.local_address) is None
    else:
        assert (sent.sent_rdma, sent.sent_udp, received.received_rdma, received.received_udp) == (
            0,
            10,
            0,
            10,
        )
        assert one.reason_for(other.local_address) is not None
    assert sum(received[4:9]) == 0  # nothing dropped, nothing lost


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_drops_are_counted_exactly(mode: str) -> None:
    """Without a receiver: the queue keeps the first ones, the rest is counted, no sender waits."""
    async with await open_at(mode) as one, await open_at(mode, receive_queue=50) as other:
        await one.resolve(other.local_address)
        for number in range(500):
            await one.send((b"%d" % number, other.local_address))
            if number % 20 == 19:
                # A device has 248 receives, so a longer burst is the device's to drop.
                await until(lambda: sum(other.statistics()[2:5]) == number + 1, other.statistics)  # noqa: B023
        assert other.statistics().dropped_full == 450
        assert [data for data, _ in await other.receive_many(1000)] == [b"%d" % n for n in range(50)]
        await one.send((b"there is room again", other.local_address))
        assert (await other.receive())[0] == b"there is room again"


async def test_one_task_in_each_direction(pair: Pair) -> None:
    one, other = pair
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.receive)
        await anyio.wait_all_tasks_blocked()
        for call in (one.receive, one.receive_many):
            with pytest.raises(anyio.BusyResourceError):
                await call()
        with pytest.raises(anyio.BusyResourceError):
            one.receive_nowait()
        await other.send((b"end", one.local_address))


async def test_a_cancelled_receive_has_taken_nothing(pair: Pair) -> None:
    one, other = pair
    got: list[bytes] = []
    for number in range(30):
        await one.send((b"%d" % number, other.local_address))
        # How often it is too early depends on the device: its datagrams may arrive at any time.
        with anyio.fail_after(PATIENCE):
            for n in itertools.count(1):
                done, item = await at_turn(n % 12, other.receive)
                if done:
                    got.append(item[0])
                    break
    assert got == [b"%d" % number for number in range(30)]


async def test_closing_wakes_who_waits(pair: Pair) -> None:
    one, other = pair
    ended = []

    async def wait() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await one.receive()
        ended.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await one.aclose()
    assert ended
    await one.aclose()
    assert "closed" in repr(one)
    address = other.local_address
    for call in (
        one.receive,
        one.receive_many,
        lambda: one.send((b"", address)),
        lambda: one.resolve(address),
    ):
        with pytest.raises(anyio.ClosedResourceError):
            await call()
    with pytest.raises(anyio.ClosedResourceError):
        one.send_nowait((b"", address))


async def test_attributes(pair: Pair) -> None:
    one, _ = pair
    assert one.extra(SocketAttribute.local_port) == one.local_address[1]
    assert one.extra(RdmaAttribute.path) == ("rdma" if one.fallback_reason is None else "udp")
    if one.fallback_reason is not None:
        assert one.extra(RdmaAttribute.fallback_reason).code == Code.DISABLED


async def test_the_first_datagrams_do_not_wait() -> None:
    """Datagrams use UDP while the peer is being resolved, and RDMA as soon as it has answered."""
    async with await open_at() as one, await open_at() as other:
        one.send_nowait((b"first", other.local_address))
        assert one.path_to(other.local_address) is None
        assert await other.receive() == (b"first", one.local_address)
        await one.resolve(other.local_address)
        await one.send((b"second", other.local_address))
        assert await other.receive() == (b"second", one.local_address)
        # A resolved peer knows the return path.
        assert other.path_to(one.local_address) == "rdma"
        assert (one.statistics().sent_udp, one.statistics().sent_rdma) == (1, 1)


async def test_both_ask_at_the_same_time() -> None:
    for _ in range(5):
        async with await open_at() as one, await open_at() as other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.resolve, other.local_address)
                tasks.start_soon(other.resolve, one.local_address)
            for a, b in ((one, other), (other, one)):
                await until(lambda a=a: a.statistics().peers_rdma == 1)  # type: ignore[misc]
                await a.send((b"hello", b.local_address))
                assert await b.receive() == (b"hello", a.local_address)
            assert one.statistics().sent_udp == 0


async def test_rdma_only() -> None:
    async with await open_at("rdma") as one, await open_at("tcp") as plain, await open_at("rdma") as other:
        with pytest.raises(NegotiationError, match="no resolver at") as caught:
            await one.send((b"never by UDP", plain.local_address))
        assert caught.value.code == Code.PLAIN_UDP_PEER
        assert await one.resolve(plain.local_address) == "udp"
        with pytest.raises(anyio.WouldBlock):
            one.send_nowait((b"too early", other.local_address))
        await one.send((b"waits for the way", other.local_address))
        assert await other.receive() == (b"waits for the way", one.local_address)
        assert one.statistics().sent_udp == 0
    with pytest.raises(NegotiationError):
        await open_at("rdma", config=Config(device="none"))


async def test_a_peer_without_a_device_says_so() -> None:
    async with await open_at() as one, await open_at(config=Config(device="none")) as other:
        assert other.fallback_reason is not None
        assert await one.resolve(other.local_address) == "udp"
        reason = one.reason_for(other.local_address)
        assert reason is not None
        assert reason.code == Code.DISABLED
        await one.send((b"by UDP", other.local_address))
        assert await other.receive() == (b"by UDP", one.local_address)


async def test_a_plain_udp_program_gets_its_data_and_nothing_else() -> None:
    await check_plain_program(0)


@in_virtual_time
async def test_a_plain_udp_program_gets_nothing_else_a_minute_later() -> None:
    await check_plain_program(60)


async def check_plain_program(later: float) -> None:
    """What it gets from one message to the next, of which one comes so many seconds later."""
    plain = await anyio.create_udp_socket(local_host=LOCAL)
    async with plain, await open_at() as one:
        address = plain.extra(SocketAttribute.local_address)
        assert isinstance(address, tuple)
        await one.send((b"first", address))
        assert await one.resolve(address) == "udp"
        await one.send((b"second", address))
        assert [(await plain.receive())[0] for _ in range(2)] == [b"first", b"second"]
        await plain.sendto(b"answer", *one.local_address)
        assert await one.receive() == (b"answer", address)
        await anyio.sleep(later)
        await one.send((b"third", address))
        assert (await plain.receive())[0] == b"third"


async def test_remote() -> None:
    async with await open_at() as server, await open_at() as stranger:
        one = await aiordma.open_datagram_endpoint((LOCAL, 0), server.local_address)
        async with one:
            assert one.remote_address == server.local_address
            assert await one.resolve() == "rdma"
            await one.send((b"to the only one", None))
            assert await server.receive() == (b"to the only one", one.local_address)
            with pytest.raises(ValueError, match="only"):
                await one.send((b"", stranger.local_address))
            await stranger.send((b"by UDP", one.local_address))
            assert await stranger.resolve(one.local_address) == "udp"  # it is not wanted
            await stranger.send((b"again", one.local_address))
            await server.send((b"answer", one.local_address))
            assert await one.receive() == (b"answer", server.local_address)
            await until(lambda: one.statistics().dropped_unknown == 2, one.statistics)


async def test_names_and_wrong_addresses() -> None:
    async with await open_at() as one, await open_at() as other:
        port = other.local_address[1]
        with pytest.raises(ValueError, match="localhost"):
            one.send_nowait((b"x", ("localhost", port)))
        await one.send((b"by name", ("localhost", port)))
        assert (await other.receive())[0] == b"by name"
        one.send_nowait((b"known now", ("localhost", port)))
        assert (await other.receive())[0] == b"known now"
        for wrong in (0, -1, 65536):
            with pytest.raises(ValueError, match="must be from 1"):
                await one.send((b"x", (LOCAL, wrong)))
        with pytest.raises(ValueError, match="IPv6"):
            await one.send((b"x", ("::1", port)))
        with pytest.raises(ValueError, match="no remote address"):
            await one.send((b"x", None))
        with pytest.raises(ValueError, match="at least 1"):
            await open_at(max_peers=0)
        with pytest.raises(OSError, match=f"cannot bind UDP {LOCAL}:{port}"):
            await aiordma.open_datagram_endpoint((LOCAL, port))


async def test_ipv6() -> None:
    one = await aiordma.open_datagram_endpoint(("::1", 0))
    async with one, await aiordma.open_datagram_endpoint(("::1", 0)) as other:
        assert await one.resolve(other.local_address) == "rdma"
        await one.send((b"six", other.local_address))
        assert await other.receive() == (b"six", one.local_address)


async def test_many_peers() -> None:
    async with await open_at() as server:
        clients = [await open_at() for _ in range(20)]

        async def client(number: int) -> None:
            endpoint = clients[number]
            assert await endpoint.resolve(server.local_address) == "rdma"
            for step in range(10):
                await endpoint.send((b"%d" % step, server.local_address))
                assert await endpoint.receive() == (b"%d %d" % (number, step), server.local_address)

        async def serve() -> None:
            numbers = {endpoint.local_address: number for number, endpoint in enumerate(clients)}
            while True:
                data, address = await server.receive()
                await server.send((b"%d " % numbers[address] + data, address))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            async with anyio.create_task_group() as running:
                for number in range(len(clients)):
                    running.start_soon(client, number)
            tasks.cancel_scope.cancel()
        assert server.statistics().peers_rdma == 20
        for endpoint in clients:
            await endpoint.aclose()
        await until(lambda: server.statistics().peers_rdma == 0, server.statistics)


async def test_peers_not_used_are_forgotten_first() -> None:
    async with await open_at(max_peers=3) as one:
        others = [await open_at() for _ in range(5)]
        for number, other in enumerate(others):
            assert await one.resolve(other.local_address) == "rdma"
            await one.send((b"%d" % number, other.local_address))
            assert await other.receive() == (b"%d" % number, one.local_address)
        assert one.statistics().peers_rdma == 3
        # Peers whose entries were dropped have noticed, and every peer is still reachable.
        await until(lambda: sum(other.statistics().peers_rdma for other in others) == 3)
        for other in others:
            await one.resolve(other.local_address)
            await one.send((b"again", other.local_address))
            assert await other.receive() == (b"again", one.local_address)
        for other in others:
            await other.aclose()


async def test_a_peer_that_dies_and_comes_back() -> None:
    """The peer's death is noticed; datagrams to its successor on the same port arrive."""
    async with await open_at() as one:
        with process("tests.datagrams.roles:endpoint_echo", port=0) as victim:
            address = (LOCAL, await victim.heard())
            assert await one.resolve(address) == "rdma"
            await one.send((b"one", address))
            assert await one.receive() == (b"one", address)
            victim.kill()
            await until(lambda: one.statistics().peers_rdma == 0, one.statistics)
            await one.send((b"into the void", address))
            assert await one.resolve(address) == "udp"
        one._table.forget_all()  # what the sweep does with expired answers
        with process("tests.datagrams.roles:endpoint_echo", port=address[1]) as successor:
            assert await successor.heard() == address[1]
            assert await one.resolve(address) == "rdma"
            await one.send((b"two", address))
            assert await one.receive() == (b"two", address)


async def test_nothing_is_left() -> None:
    engine = await engines.current()
    async with await open_at() as one, await open_at() as other:  # state that remains is created once
        await one.resolve(other.local_address)
    await endpoint_begun()
    before, memory, limit = descriptors(), engine.pool.statistics().used_bytes, engine.cache.limit
    for number in range(12):
        async with await open_at() as one, await open_at() as other:
            await one.send((b"x", other.local_address))
            # Closed during resolution, at another step each time, or after the answer.
            for _ in range(number):
                await anyio.lowlevel.checkpoint()
            if number % 3 == 0:
                await one.resolve(other.local_address)
                await one.send((b"y", other.local_address))
    await until(lambda: len(descriptors()) <= len(before), lambda: (before, descriptors()))
    assert engine.pool.statistics().used_bytes == memory
    assert engine.cache.limit == limit


async def test_many_endpoints_find_the_completion_queue_full() -> None:
    engine = await engines.current()
    opened = []
    try:
        while True:
            endpoint = await open_at()
            opened.append(endpoint)
            if endpoint.fallback_reason is not None:
                break
        assert endpoint.fallback_reason.code == Code.LIMIT_REACHED
        assert engine.cache.limit >= len(engine.all_groups)
        assert await opened[0].resolve(endpoint.local_address) == "udp"
        await opened[0].send((b"still", endpoint.local_address))
        assert await endpoint.receive() == (b"still", opened[0].local_address)
    finally:
        for endpoint in opened:
            await endpoint.aclose()


def test_endpoints_end_with_their_loop() -> None:
    async def main() -> None:
        one, other = await open_at(), await open_at()
        await one.resolve(other.local_address)
        await one.send((b"x", other.local_address))

    for backend in ("asyncio", "trio"):
        for _ in range(3):
            anyio.run(main, backend=backend)


async def test_a_queue_pair_with_the_number_of_the_one_before(rdma_pair: Pair) -> None:
    """The peer's process was replaced, and its device has given the number again: only the key is new.

    What is sent with the old key never arrives.
    """
    one, other = rdma_pair
    table, where = one._table, other.local_address
    parts = parts_of(one)
    newer = replace(parts_of(other).where, qkey=parts_of(other).where.qkey ^ 1)
    ours, theirs = tcp_sockets()
    route = parts.route(newer, where)
    with theirs:
        # The nonce of a query that both have made at the same time: the route that there is stays.
        same = parts.route(parts_of(other).where, where)
        before = table.peers[where].route
        assert table.adopt(where, same, bytes(16), ours) is before
        again, theirs_too = tcp_sockets()
        with theirs_too:
            assert table.adopt(where, route, bytes(16), again) is route
            assert one.path_to(where) == "rdma"
            assert list(parts.port.senders.values()) == [route]


@pytest.mark.parametrize("local", [None, ("0.0.0.0", 0), ("::", 0)])
@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_the_address_towards_the_only_peer(local: Any, mode: Any) -> None:
    """As a UDP socket that is connected has it."""
    host = "::1" if local == ("::", 0) else LOCAL
    async with await aiordma.open_datagram_endpoint((host, 0), mode=mode) as far:
        async with await aiordma.open_datagram_endpoint(local, far.local_address, mode=mode) as near:
            assert near.local_address[0] == host
            await near.send((b"here", None))
            with anyio.fail_after(PATIENCE):
                assert await far.receive() == (b"here", near.local_address)


@in_virtual_time
@pytest.mark.parametrize("what", ["this end closes", "the peer closes"])
async def test_who_asks_for_the_path_is_answered_when_an_end_closes(what: str) -> None:
    """At whatever moment of that: nobody waits for a peer that is forgotten."""
    for turn in range(6):
        one, other = await open_at(), await open_at()
        async with one, other:
            assert await one.resolve(other.local_address) == "rdma"
            closes = one if what == "this end closes" else other
            address = other.local_address

            async def ask(one: DatagramEndpoint = one, address: Any = address) -> None:
                if what == "this end closes":
                    with contextlib.suppress(anyio.ClosedResourceError):
                        await one.resolve(address)
                else:
                    await one.resolve(address)

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for _ in range(8):
                        tasks.start_soon(ask)
                        await anyio.lowlevel.checkpoint()
                    for _ in range(turn):
                        await anyio.lowlevel.checkpoint()
                    tasks.start_soon(ask)
                    tasks.start_soon(closes.aclose)
                    tasks.start_soon(ask)
