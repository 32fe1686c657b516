"""Misbehaving networks and peers: losses are counted, and false claims rejected."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import socket
import struct
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma.config import Config
from aiordma.datapath._ud import UdPort
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.proto.resolve import PROVE, PROVED, Hello, Welcome, udp_proof
from aiordma.verbs import softlib
from tests.health import until
from tests.processes import PATIENCE
from tests.refusing import no_receives
from tests.tuned import tuned
from tests.virtual import in_virtual_time
from tests.world import needs_pyverbs

from .test_endpoint import LOCAL, open_at, parts_of, rdma_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.datagrams.endpoint import DatagramEndpoint

    from .test_endpoint import Pair

pytestmark = pytest.mark.anyio

__all__ = ["rdma_pair"]


@contextlib.contextmanager
def faults(spec: str) -> Iterator[None]:
    library = softlib.loaded()
    assert library is not None
    device = ctypes.CDLL(str(library.path))
    assert device.softdev_faults(spec.encode()) == 0
    try:
        yield
    finally:
        assert device.softdev_faults(None) == 0


@pytest.mark.parametrize("first", [1, 2, 5])
async def test_a_queue_pair_that_gets_no_receives(first: int) -> None:
    """The endpoint begins on UDP, and nothing is kept of the queue pair that was to be."""
    async with await open_at() as known:
        engine = await engines.current()
        before, limit = engine.pool.statistics(), engine.cache.limit
        with no_receives(parts_of(known).qp.pointer, only=False, first=first):
            async with await open_at() as endpoint:
                assert endpoint.fallback_reason is not None
                assert endpoint.fallback_reason.code == Code.DEVICE_FAILURE
                assert await endpoint.resolve(known.local_address) == "udp"
                await endpoint.send((b"there", known.local_address))
                assert await known.receive() == (b"there", endpoint.local_address)
        after = engine.pool.statistics()
        assert (after.used_bytes, after.registered_bytes) == (before.used_bytes, before.registered_bytes)
        assert engine.cache.limit == limit
        gc.collect()
        assert len([each for each in gc.get_objects() if type(each) is UdPort]) == 1


async def test_a_queue_pair_that_gets_no_receives_any_more(rdma_pair: Pair) -> None:
    """It is replaced."""
    one, other = rdma_pair
    assert other._device is not None
    with no_receives(parts_of(other).qp.pointer), anyio.fail_after(PATIENCE):
        while not other._device.moves:
            await one.send((b"x", other.local_address))
            await anyio.lowlevel.checkpoint()
    assert other.fallback_reason is None


async def test_lost_datagrams_are_counted(rdma_pair: Pair) -> None:
    one, other = rdma_pair
    # The first one sets the start of the sequence.
    await one.send((b"-1", other.local_address))
    with faults("seed=7,drop=0.3"):
        for number in range(500):
            await one.send((b"%d" % number, other.local_address))
            if number % 50 == 0:
                await anyio.lowlevel.checkpoint()
    await one.send((b"last", other.local_address))
    got = []
    while b"last" not in got:
        got.append((await other.receive())[0])
    assert 200 < len(got) < 500
    assert other.statistics().lost == 502 - len(got)
    assert [int(data) for data in got[:-1]] == sorted({int(data) for data in got[:-1]})


async def test_reordered_datagrams_are_late_and_not_lost(rdma_pair: Pair) -> None:
    one, other = rdma_pair
    # The first one sets the start of the sequence.
    await one.send((b"first", other.local_address))
    with faults("reorder=1"):
        for number in range(100):
            await one.send((b"%d" % number, other.local_address))
    got = [(await other.receive())[0] for _ in range(101)]
    assert got[1:] == [b"%d" % (number ^ 1) for number in range(100)]
    assert other.statistics().lost == 0


async def test_duplicates_and_changed_bytes_come_through_as_they_are(rdma_pair: Pair) -> None:
    one, other = rdma_pair
    with faults("duplicate=1,corrupt=1"):
        await one.send((b"abcdefgh", other.local_address))
    assert [(await other.receive())[0] for _ in range(2)] == [b"abcd%cfgh" % (ord("e") ^ 0x40)] * 2


async def test_proofs_are_repeated_until_they_come() -> None:
    async with await open_at() as one, await open_at() as other:
        with faults("seed=5,drop=0.3,corrupt=0.1,duplicate=0.3"):
            assert await one.resolve(other.local_address) == "rdma"
        await one.send((b"there", other.local_address))
        while (await other.receive())[0] != b"there":
            pass


@pytest.mark.parametrize("spec", ["drop=1", "corrupt=1"])
async def test_where_datagrams_do_not_arrive_udp_is_used(spec: str) -> None:
    async with await open_at(config=tuned(link_timeout_ms=100)) as one, await open_at() as other:
        with faults(spec):
            assert await one.resolve(other.local_address) == "udp"
        reason = one.reason_for(other.local_address)
        assert reason is not None
        assert reason.code == Code.PEER_UNREACHABLE
        await one.send((b"by UDP", other.local_address))
        assert await other.receive() == (b"by UDP", one.local_address)
        if spec == "corrupt=1":
            assert other.statistics().dropped_malformed > 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"aioudp\x00\x01",
        b"aioudp\x00\x02" + bytes(80),
        b"aioudp\x00\x01" + bytes(200),
        b"aioudp\x00\x01\x01" + b"\xff" * 200,
    ],
)
async def test_garbage_at_the_resolver(garbage: bytes) -> None:
    async with await open_at() as one, await open_at() as other:
        async with await anyio.connect_tcp(LOCAL, one.local_address[1]) as stream:
            await stream.send(garbage)
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await stream.send_eof()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert await other.resolve(one.local_address) == "rdma"


async def test_who_says_nothing_is_left_after_a_while() -> None:
    async with await open_at(config=Config(negotiate_timeout_ms=30)) as one:
        async with await anyio.connect_tcp(LOCAL, one.local_address[1]) as stream:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()


@in_virtual_time
async def test_a_lying_resolver_is_not_believed() -> None:
    """The peer answers with another's queue pair, another nonce, garbage, or not at all."""
    async with await open_at(config=tuned(negotiate_timeout_ms=100, link_timeout_ms=100)) as one:
        async with await open_at() as innocent:
            where = parts_of(innocent).where

            async def lie(answer: bytes | None) -> int:
                with socket.create_server((LOCAL, 0)) as listening:
                    listening.setblocking(False)
                    address = listening.getsockname()
                    path = None

                    async def ask() -> None:
                        nonlocal path
                        path = await one.resolve(address)

                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(ask)
                        await anyio.wait_readable(listening)
                        sock, _ = listening.accept()
                        with sock:
                            sock.setblocking(False)
                            await anyio.wait_readable(sock)
                            hello = Hello.decode(sock.recv(Hello.SIZE))
                            if answer is None:
                                sock.send(Welcome(hello.nonce, b"n" * 16, where).encode())
                            else:
                                sock.send(answer)
                            while path is None:  # noqa: ASYNC110
                                await anyio.sleep(0.001)
                    assert path == "udp"
                    reason = one.reason_for(address)
                    assert reason is not None
                    return reason.code

            assert await lie(None) == Code.PEER_UNREACHABLE
            assert await lie(Welcome(b"x" * 16, b"n" * 16, where).encode()) == Code.PROTOCOL_VIOLATION
            assert await lie(b"220 this is mail\r\n") == Code.PROTOCOL_VIOLATION
            assert await lie(b"") == Code.PLAIN_UDP_PEER
            assert one.statistics().peers_rdma == 0
            assert innocent.statistics().peers_rdma == 0
            # The innocent one received no request, and a nonce it does not know.
            assert innocent.statistics().received_rdma == 0


@in_virtual_time
async def test_a_resolver_that_resets_the_connection_has_no_rdma() -> None:
    """In the middle of the proof: whoever waits to learn the path learns it then."""
    async with await open_at(config=tuned(link_timeout_ms=1000)) as one, await open_at() as innocent:
        with socket.create_server((LOCAL, 0)) as listening:
            listening.setblocking(False)

            async def answer_and_reset() -> None:
                await anyio.wait_readable(listening)
                sock, _ = listening.accept()
                with sock:
                    sock.setblocking(False)
                    await anyio.wait_readable(sock)
                    hello = Hello.decode(sock.recv(Hello.SIZE))
                    sock.send(Welcome(hello.nonce, b"n" * 16, parts_of(innocent).where).encode())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer_and_reset)
                with anyio.fail_after(10):
                    assert await one.resolve(listening.getsockname()) == "udp"
            reason = one.reason_for(listening.getsockname())
            assert reason is not None
            assert reason.code == Code.PEER_UNREACHABLE


def ask_and_reset(endpoint: DatagramEndpoint, times: int) -> None:
    """Ask it for its queue pair, each time from a connection that is reset before the answer."""
    for _ in range(times):
        with socket.create_connection(endpoint.local_address) as sock:
            sock.send(Hello(b"a" * 16, parts_of(endpoint).where).encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_who_asks_and_resets_the_connection_leaves_nothing_behind() -> None:
    async with await open_at("rdma") as one, await open_at("rdma") as other:
        ask_and_reset(one, 50)
        # It is served after them.
        assert await other.resolve(one.local_address) == "rdma"
        resolver = one._table.resolver
        await until(lambda: not resolver._jobs)
        assert len(resolver._queries) == 1


async def test_a_claim_without_proof_is_worth_nothing() -> None:
    """An attacker claims the victim's queue pair for its own UDP port; it cannot send from there."""
    async with await open_at() as server, await open_at() as victim, await open_at() as attacker:
        victims = parts_of(victim).where
        parts = parts_of(attacker)
        assert parts is not None
        with socket.create_connection(server.local_address) as sock:
            sock.setblocking(False)
            sock.send(Hello(b"a" * 16, victims).encode())
            await anyio.wait_readable(sock)
            welcome = Welcome.decode(sock.recv(Welcome.SIZE), b"a" * 16)
            assert welcome.where is not None
            route = parts.route(welcome.where, server.local_address)
            attacker._sock.sendto(udp_proof(welcome.nonce), server.local_address)
            parts.port.send_control(route, PROVE, welcome.nonce)  # from its own queue pair
            parts.port.send_control(route, PROVE, b"guess" + bytes(11))
            parts.port.send_control(route, PROVED, b"a" * 16)
            parts.port.send_control(route, 9, b"")
            parts.port.try_send(route, b"data from nobody")
            await until(lambda: server.statistics().dropped_malformed == 4, server.statistics)
            await until(lambda: server.statistics().dropped_unknown == 1, server.statistics)
            assert server.statistics().peers_rdma == 0
            parts.port.bury(route)
        # A datagram that looks like a proof but is none counts as data.
        looks_like = udp_proof(b"r" * 16)
        attacker._sock.sendto(looks_like, server.local_address)
        assert await server.receive() == (looks_like, attacker.local_address)
        assert await victim.resolve(server.local_address) == "rdma"
        await victim.send((b"really me", server.local_address))
        assert await server.receive() == (b"really me", victim.local_address)


async def test_who_is_not_wanted_proves_it_once() -> None:
    """An endpoint with one peer only: another's queue pair takes nothing of the device, however often it is
    proved."""
    async with (
        await open_at() as wanted,
        await open_at(remote=wanted.local_address) as server,
        await open_at() as other,
    ):
        parts, resolver, times = parts_of(other), server._table.resolver, 50
        with socket.create_connection(server.local_address) as sock:
            sock.setblocking(False)
            sock.send(Hello(b"a" * 16, parts.where).encode())
            await anyio.wait_readable(sock)
            welcome = Welcome.decode(sock.recv(Welcome.SIZE), b"a" * 16)
            assert welcome.where is not None
            route = parts.route(welcome.where, server.local_address)
            (query,) = resolver._queries.values()
            other._sock.sendto(udp_proof(welcome.nonce), server.local_address)
            await until(lambda: query.from_port)
            for _ in range(times):
                parts.port.send_control(route, PROVE, welcome.nonce)
            await until(lambda: resolver.answered + resolver.rejected == times)
            assert resolver.answered == 1
            await until(lambda: not resolver._queries)
            await anyio.wait_readable(sock)
            assert sock.recv(1) == b""
            parts.port.bury(route)


@needs_pyverbs
async def test_datagrams_that_are_none_of_ours(rdma_pair: Pair) -> None:
    """Raw work requests: without immediate data, and with unknown immediate data, where the device accepts
    them. They are counted, and the receives are posted again."""
    from pyverbs import enums
    from pyverbs.wr import SGE, SendWR

    one, other = rdma_pair
    parts, target = parts_of(one), parts_of(other)
    route = parts.route(target.where, other.local_address)
    assert route.handle is not None
    slot = parts._slots
    count = 0
    for _ in range(200):  # more than half of the receives
        for opcode, imm, length in (("SEND", 0, 64), ("SEND", 0, 1), ("SEND_WITH_IMM", 0, 4096)):
            request = SendWR(
                wr_id=0xFFFF << 48,
                opcode=getattr(enums, f"IBV_WR_{opcode}"),
                num_sge=1,
                sg=[SGE(slot.address, length, slot.lkey)],
                imm_data=imm,
                send_flags=enums.IBV_SEND_SIGNALED,
            )
            request.set_wr_ud(route.handle.ah, target.qp.number, target.qp.qkey)
            parts.qp.qp.post_send(request)
            count += 1
        await until(lambda count=count: other.statistics().dropped_malformed == count, other.statistics)  # type: ignore[misc]
    await one.send((b"ours", other.local_address))
    assert await other.receive() == (b"ours", one.local_address)
    parts.port.bury(route)


async def test_another_queue_key_reaches_nobody(rdma_pair: Pair) -> None:
    """The device drops it: no counter changes."""
    one, other = rdma_pair
    parts, target = parts_of(one), parts_of(other)
    wrong = dataclasses.replace(target.where, qkey=target.where.qkey ^ 1)
    route = parts.route(wrong, other.local_address)
    assert parts.port.try_send(route, b"with the wrong key")
    await one.send((b"with the right one", other.local_address))
    assert (await other.receive())[0] == b"with the right one"
    assert sum(other.statistics()[4:9]) == 0
    parts.port.bury(route)


async def test_a_peer_that_asks_again_and_again(rdma_pair: Pair) -> None:
    """It has proved what it is, and takes no more descriptors than a peer may."""
    one, other = rdma_pair
    table = other._table
    assert table.parts is not None
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            asked = table.resolver.ask(table.parts, table._family, one.local_address, one.local_address, None)
            _, _, sock = await asked
            stack.callback(sock.close)
        links = one._peers[other.local_address].links
        assert len(links) <= 3
        assert len(one._table.resolver._queries) <= 2
        await other.send((b"still here", one.local_address))
        assert (await one.receive())[0] == b"still here"
