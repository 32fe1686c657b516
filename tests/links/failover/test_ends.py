"""What comes after the crossing: TLS, a peer that dies, requests that cannot be met."""

from __future__ import annotations

import ctypes
import signal
import ssl
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.links.failover.leave import switch_engine, switch_group
from aiordma.links.link import Link
from aiordma.pipes.tls import TlsLayer
from aiordma.verbs.softlib import SoftLibrary
from tests.health import check_echo, nothing_left, until
from tests.links.pairs import member_of
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.streams.pairs import negotiated_pair, rdma_pair, tls_contexts
from tests.system.integration.test_integrity import both_ways
from tests.world import DEVICE, PERSONALITY

from .breaking import WAYS, take_off

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("ignores_eof", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_through_the_tls_session_that_the_negotiation_used(
    way: str, ignores_eof: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contexts of some Pythons ignore TCP's end without TLS's own by default, those of others do not."""
    clear: list[bytes] = []
    original = TlsLayer.send

    def send(layer: TlsLayer, data: bytes | bytearray | memoryview) -> int:
        taken = original(layer, data)
        clear.append(bytes(memoryview(data)[:taken]))
        return taken

    monkeypatch.setattr(TlsLayer, "send", send)
    client, server = tls_contexts.__wrapped__()
    for context in (client, server):
        option = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0x80)
        context.options = context.options | option if ignores_eof else context.options & ~option
    async with nothing_left() as engine:
        one, other = await negotiated_pair(
            ssl=client, server_ssl=server, rdma_outside_tls=True, config=Config(server_first_wait_ms=0)
        )
        assert one.path == other.path == "rdma"
        results: list[list[Any]] = []

        async def exchange(stream: aiordma.RdmaStream, seed: int) -> None:
            results.append(await both_ways(stream, Random(seed), 1_000_000))

        async def harm() -> None:
            await until(lambda: one.statistics().bytes_received > 100_000)
            clear.clear()
            take_off(engine, way)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(harm)
                tasks.start_soon(exchange, one, 1)
                tasks.start_soon(exchange, other, 2)
        (sent, received), (others_sent, others_received) = results
        assert received == [others_sent, 1_000_000]
        assert others_received == [sent, 1_000_000]
        assert one.path == other.path == "tcp"
        # All of it was given to the session, and none to the socket beside it.
        assert b"AIOC" in b"".join(clear)
        on_rdma = 2_000_000 - sum(map(len, clear))
        assert 0 < on_rdma < 2_000_000


async def test_a_peer_that_is_killed_afterwards_is_reported() -> None:
    async with nothing_left() as engine:
        with process("tests.roles:echo_server") as victim:
            stream = await aiordma.connect(LOCAL, await victim.heard(), mode="rdma")
            await check_echo(stream)
            take_off(engine, "link")
            await check_echo(stream)
            assert stream.path == "tcp"
            victim.kill()
            with pytest.raises(anyio.BrokenResourceError) as caught:
                await stream.receive()
            assert caught.value.__cause__ is not None
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"x")
            await stream.aclose()


async def test_a_peer_that_is_killed_meanwhile_is_reported() -> None:
    async with nothing_left() as engine:
        with process("tests.roles:echo_server") as victim:
            stream = await aiordma.connect(LOCAL, await victim.heard(), mode="rdma")
            await check_echo(stream)
            # With what it has not read the end is no orderly one, however soon the device sees it.
            victim.kill(signal.SIGSTOP)
            await stream.send(b"unread")
            victim.kill()
            take_off(engine, "link")
            with pytest.raises(anyio.BrokenResourceError) as caught:
                await stream.receive()
            assert caught.value.__cause__ is not None
            assert stream.path == "rdma"
            await stream.aclose()


async def test_switching_on_request() -> None:
    async with nothing_left() as engine:
        pairs = [await rdma_pair() for _ in range(3)]
        (group,) = [group for group in engine.all_groups if group.key[1] == "client"]
        assert switch_group(group, "maintenance") == 3
        assert switch_group(group) == 0
        assert switch_engine(engine) == 3  # the other ends, who have not heard of it yet
        for one, other in pairs:
            while "rdma" in (one.path, other.path):
                await anyio.lowlevel.checkpoint()
            assert one.fallback_reason is not None
            assert one.fallback_reason.code == Code.SWITCHED
            assert one.fallback_reason.text.endswith(": maintenance")
            await one.send(b"there")
            assert await other.receive() == b"there"
        # The link is whole, and takes new streams.
        assert group.active
        assert not group.members
        pairs.append(await rdma_pair())
        assert len(engine.all_groups) == 2
        await pairs[-1][0].send(b"new")
        assert await pairs[-1][1].receive() == b"new"
        assert pairs[-1][0].path == "rdma"
        for one, other in pairs:
            await one.aclose()
            await other.aclose()


async def test_senders_and_receivers_that_wait() -> None:
    """A full ring, a task that waits for room, and one that waits for data."""
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        data = Random(1).randbytes(2_000_000)
        got: list[bytes] = []

        async def receive(stream: aiordma.RdmaStream) -> None:
            got.append(await stream.receive())

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.send, data)
                tasks.start_soon(receive, one)
                await until(lambda: one.statistics().times_blocked > 0)
                take_off(engine, "switch all")
                received = b""
                while len(received) < len(data):
                    received += await other.receive()
                assert received == data
                await other.send(b"answer")
        assert got == [b"answer"]
        await one.aclose()
        await other.aclose()


async def test_a_loan_of_the_ring_is_good_until_it_is_given_back() -> None:
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        await one.send(b"in the ring")
        with await other.borrow() as view:
            take_off(engine, "link")
            while "rdma" in (one.path, other.path):
                await anyio.lowlevel.checkpoint()
            await one.send(b", on TCP")
            assert bytes(view) == b"in the ring"
        with await other.borrow() as view:
            assert bytes(view) == b", on TCP"
        await one.aclose()
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        await other.aclose()


async def test_without_the_setting_a_link_takes_its_streams_with_it() -> None:
    engine = await engines.current(Config(failover_timeout_ms=0))
    one, other = await negotiated_pair(mode="rdma")
    assert switch_engine(engine) == 0
    take_off(engine, "link")
    for stream in (one, other):
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        await stream.aclose()
    engine.close()


@pytest.mark.parametrize("eof", [False, True])
async def test_nothing_comes_behind_an_error(eof: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has been told that bytes are lost must not read on as if they were not, nor see an end in order."""
    monkeypatch.setattr(Link, "shows_end", True)  # the peer does not end meanwhile
    async with nothing_left():
        one, other = await negotiated_pair(mode="rdma")
        await other.send(b"before")
        await until(lambda: one.statistics().cdcs_received > 0)
        member_of(one).lose_tcp("in this test")
        assert await one.receive() == b"before"
        with pytest.raises(anyio.BrokenResourceError, match="in this test"):
            await one.receive()
        seen = one.statistics().cdcs_received
        await other.send(b"behind")
        if eof:
            await other.send_eof()
        await until(lambda: one.statistics().cdcs_received > seen)
        for _ in range(2):
            with pytest.raises(anyio.BrokenResourceError, match="in this test"):
                await one.receive()
            with pytest.raises(anyio.BrokenResourceError, match="in this test"):
                one.receive_nowait()
            with pytest.raises(anyio.BrokenResourceError, match="in this test"):
                await one.receive_into(bytearray(10))
            with pytest.raises(anyio.BrokenResourceError, match="in this test"):
                await one.borrow()
        await one.aclose()
        await other.aclose()


@pytest.mark.parametrize("ticket", [False, True])
async def test_what_the_device_still_has_comes_behind_the_end_of_tcp(
    ticket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel closes the connections of a process that has ended before the device has told of its end:
    also those that were opened with a ticket."""
    monkeypatch.setattr(Link, "shows_end", True)
    accepted: list[aiordma.RdmaStream] = []
    async with nothing_left(), await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:

        async def hold(stream: aiordma.RdmaStream) -> None:
            accepted.append(stream)
            await stream.send(b"hello")
            await anyio.sleep_forever()

        tasks.start_soon(listener.serve, hold)
        streams = []
        for _ in range(3 if ticket else 1):
            streams.append(await aiordma.connect(LOCAL, listener.port, mode="rdma"))
            assert await streams[-1].receive() == b"hello"
        stream, peer = streams[-1], accepted[-1]
        member = member_of(stream)
        assert (member.early_open is not None) == ticket
        member._tcp_ended("its process has ended")
        await peer.send(b"the last words")
        assert await stream.receive() == b"the last words"
        for each in (*streams, *accepted):
            await each.aclose()
        tasks.cancel_scope.cancel()


@pytest.mark.skipif(DEVICE != "soft", reason="the device's count of WRITEs that it puts off")
@pytest.mark.skipif(PERSONALITY in {"irdma", "bnxt_re"}, reason="with little inline data, rings are mirrored")
async def test_a_send_takes_no_more_than_outlives_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A WRITE into a ring that the device cannot reach yet lies in a lane of 128 KiB, with its header."""
    count = ctypes.c_uint64()
    monkeypatch.setattr(Link, "shows_end", True)
    monkeypatch.setattr(SoftLibrary, "astray", lambda *_: ctypes.addressof(count))
    async with nothing_left():
        one, other = await negotiated_pair(mode="rdma")
        pipe: Any = one._pipe
        count.value += 1  # the first WRITE is put off
        assert pipe.try_send(bytes(300_000)) == 112 << 10
        assert pipe.try_send(bytes(300_000)) == 0
        with anyio.fail_after(PATIENCE):
            await one.send(bytes(300_000))  # its completion comes by itself
            assert await other.receive_exactly((112 << 10) + 300_000) == bytes((112 << 10) + 300_000)
        await other.send(b"read")  # with the room that there is again
        assert await one.receive() == b"read"
        assert pipe.try_send(bytes(150_000)) == 150_000  # it is carried out while it is posted
        await one.aclose()
        await other.aclose()
