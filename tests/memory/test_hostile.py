"""Peers that send what no honest one sends: clear answers or the end of the connection, nothing touched."""

from __future__ import annotations

import contextlib
import itertools
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import memory
from aiordma.channels import channel
from aiordma.errors import RemoteProtocolError
from aiordma.memory import Fault, Rights
from aiordma.memory.connect import _Listener
from aiordma.negotiation.accept import open_listener
from aiordma.negotiation.options import ListenOptions
from aiordma.proto.clc import Kind
from aiordma.proto.memory import HEADER, Descriptor, Op, head, open_answer, span
from tests.health import settle, until
from tests.pipes.channel_ends import End
from tests.roles import LOCAL
from tests.virtual import in_virtual_time

from .pairs import PATHS, config_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def raw_client(path: str, size: int = 4096) -> AsyncIterator[tuple[End, memory.Server, memory.Region]]:
    """A client of messages only, a server, and its region, which must not change."""
    config = config_of(path)
    async with (
        memory.serve(LOCAL, config=config) as server,
        await memory.alloc(size, config=config) as region,
        await channel.connect(LOCAL, server.port, kind=Kind.MEMORY, config=config) as connected,
    ):
        assert connected.path == path
        await until(lambda: bool(server.peers))
        yield End(connected.channel), server, region
        assert not any(region[:].view)


async def answer(end: End, message: bytes) -> tuple[int, int, bytes]:
    """Operation, code and rest of the answer."""
    await end.send(b"", message)
    await end.until(lambda: bool(end.messages) or bool(end.closed))
    (got,) = end.messages
    end.messages.clear()
    op, code, _ = HEADER.unpack(bytes(got)[:8])
    return op, code, bytes(got)[8:]


async def refused(end: End, message: bytes) -> Fault:
    op, code, text = await answer(end, message)
    assert op == Op.REFUSED
    assert text
    return Fault(code)


@pytest.mark.parametrize("path", PATHS)
async def test_descriptors_that_open_nothing(path: str) -> None:
    async with raw_client(path) as (end, _, region):
        good = region.descriptor()
        meant = Descriptor.decode(good)
        wrong = {
            b"": Fault.MALFORMED,
            good[:-1]: Fault.MALFORMED,
            good + b"\0": Fault.MALFORMED,
            b"x" + good[1:]: Fault.MALFORMED,
            good[:3] + b"\2" + good[4:]: Fault.MALFORMED,
            meant._replace(rights=Rights(0)).encode(): Fault.MALFORMED,
            meant._replace(length=0).encode(): Fault.MALFORMED,
            meant._replace(rights=Rights(7)).encode(): Fault.UNKNOWN,
            meant._replace(length=5000).encode(): Fault.UNKNOWN,
            meant._replace(expires_ms=1).encode(): Fault.UNKNOWN,
            meant._replace(secret=bytes(16)).encode(): Fault.UNKNOWN,
            Descriptor.new(Rights.WRITE, 4096, 0).encode(): Fault.UNKNOWN,
        }
        for number, (descriptor, fault) in enumerate(wrong.items()):
            assert await refused(end, head(Op.OPEN, number) + descriptor) == fault
        op, _, _ = await answer(end, head(Op.OPEN, 99) + good)
        assert op == Op.OPENED


@pytest.mark.parametrize("path", PATHS)
async def test_requests_outside_of_what_was_opened(path: str) -> None:
    async with raw_client(path) as (end, _, region):
        await answer(end, head(Op.OPEN, 1) + region[:100].descriptor(Rights.READ))
        await answer(end, head(Op.OPEN, 2) + region[:100].descriptor(Rights.WRITE))
        for request, fault in [
            (head(Op.READ, 5) + span(3, 0, 10), Fault.UNKNOWN),
            (head(Op.READ, 5) + span(2, 0, 10), Fault.RIGHTS),
            (head(Op.READ, 5) + span(1, 91, 10), Fault.RANGE),
            (head(Op.READ, 5) + span(1, (1 << 64) - 5, 10), Fault.RANGE),
            (head(Op.WRITE, 5) + span(1, 0) + b"x", Fault.RIGHTS),
            (head(Op.WRITE, 5) + span(2, 95) + b"x" * 6, Fault.RANGE),
            (head(Op.WRITE, 5) + span(3, 0) + b"x", Fault.UNKNOWN),
            (head(Op.FETCH_ADD, 5) + span(2, 0) + bytes(16), Fault.RIGHTS),
        ]:
            assert await refused(end, request) == fault
        await end.send(head(Op.RELEASE, 1))
        assert await refused(end, head(Op.READ, 5) + span(1, 0, 10)) == Fault.UNKNOWN


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes(7),
        head(Op.OPEN, 1)[:1] + b"\xff",
        struct.pack(">BBxxI", 77, 0, 1),
        head(Op.READ, 1) + bytes(15),
        head(Op.READ, 1) + span(1, 0, 65537),
        head(Op.DONE, 1),
        head(Op.REFUSED, 1),
        head(Op.TAKEN, 0),
        head(Op.NOTE, 0) + bytes(4097),
    ],
    ids=range(10),
)
async def test_what_is_no_request_ends_the_connection(path: str, message: bytes) -> None:
    async with raw_client(path) as (end, server, region):
        await answer(end, head(Op.OPEN, 1) + region.descriptor())
        (peer,) = server.peers
        await end.send(b"", message)
        with anyio.fail_after(30):
            await peer.wait_closed()
            await end.ended()
            await region.revoke()  # it has lost its access


async def test_more_notes_than_there_is_room_for() -> None:
    async with raw_client("tcp") as (end, server, _):
        (peer,) = server.peers
        for _ in range(65):
            await end.send(head(Op.NOTE, 0))
        with anyio.fail_after(30):
            await peer.wait_closed()


@asynccontextmanager
async def client_that_takes_nothing(
    path: str, size: int = 1 << 16
) -> AsyncIterator[tuple[End, memory.Peer, memory.Region]]:
    """A client of messages, its peer at the server, whose answers wait, and what the client has opened with
    number 1. Its requests have the numbers from 2 on."""
    async with raw_client(path, size) as (end, server, region):
        await answer(end, head(Op.OPEN, 1) + region.descriptor(Rights.READ))
        (peer,) = server.peers
        end.channel.on_message = None
        for number in itertools.count(2):
            await end.send(head(Op.READ, number) + span(1, 0, size))
            await settle()
            if len(peer._outbox):
                break
        yield end, peer, region


async def goes_on(end: End, peer: memory.Peer, message: Callable[[], bytes]) -> int:
    """Send such messages until the peer has had enough; how many were most that waited for the client."""
    most = 0
    with contextlib.suppress(anyio.BrokenResourceError):
        while not peer._over and most < 1000:
            await end.send(message())
            await settle()
            most = max(most, len(peer._outbox))
    return most


@pytest.mark.parametrize("path", PATHS)
async def test_notes_from_who_takes_nothing(path: str) -> None:
    """The program takes each of them, and the client does not take that it has."""
    async with client_that_takes_nothing(path) as (end, peer, _), anyio.create_task_group() as tasks:

        async def take() -> None:
            with contextlib.suppress(anyio.BrokenResourceError):
                async for _ in peer.notifications():
                    pass

        tasks.start_soon(take)
        assert await goes_on(end, peer, lambda: head(Op.NOTE, 0)) < 200
        with anyio.fail_after(30):
            await peer.wait_closed()


@pytest.mark.parametrize("path", PATHS)
async def test_notes_that_are_taken_before_they_were_sent(path: str) -> None:
    async with client_that_takes_nothing(path) as (end, peer, _), anyio.create_task_group() as tasks:

        async def notify() -> None:
            with contextlib.suppress(anyio.BrokenResourceError):
                while True:
                    await peer.notify(bytes(4096))

        tasks.start_soon(notify)
        await until(lambda: not peer._notes.window.available)
        assert await goes_on(end, peer, lambda: head(Op.TAKEN, 0)) < 200
        with anyio.fail_after(30):
            await peer.wait_closed()


@pytest.mark.parametrize("path", PATHS)
async def test_answers_to_requests_that_were_not_sent(path: str) -> None:
    async with client_that_takes_nothing(path) as (end, peer, region), anyio.create_task_group() as tasks:

        async def ask() -> None:
            with contextlib.suppress(anyio.BrokenResourceError):
                while True:
                    with contextlib.suppress(memory.MemoryAccessError):
                        await peer.open(region.descriptor())

        def guess() -> bytes:
            (number,) = peer.requests._pending
            return head(Op.REFUSED, number, Fault.LIMIT)

        tasks.start_soon(ask)
        await until(lambda: peer.requests.under_way)
        assert await goes_on(end, peer, guess) < 200
        with anyio.fail_after(30):
            await peer.wait_closed()


@pytest.mark.parametrize("path", PATHS)
async def test_who_is_slow_to_learn_that_much_was_taken_back_is_not_hostile(path: str) -> None:
    count = 400
    async with client_that_takes_nothing(path) as (end, peer, region):
        take = end._on_message
        end.channel.on_message = take
        await end.until(lambda: not len(peer._outbox))
        for number in range(count):
            await end.send(head(Op.OPEN, 1000 + number) + region.descriptor(Rights.READ))
        await end.until(lambda: HEADER.unpack(bytes(end.messages[-1])[:8])[2] == 999 + count)
        end.channel.on_message = None
        number = 2000
        while not len(peer._outbox):
            await end.send(head(Op.READ, number) + span(1, 0, region.nbytes))
            await settle()
            number += 1
        with anyio.fail_after(30):
            await region.revoke(grace=0)
        assert len(peer._outbox) > count
        await end.send(head(Op.READ, number) + span(1, 0, 1))
        await settle()
        end.channel.on_message = take
        await end.until(lambda: HEADER.unpack(bytes(end.messages[-1])[:8])[2] == number)
        assert bytes(end.messages[-1])[:2] == bytes([Op.REFUSED, Fault.REVOKED])


@in_virtual_time
async def test_who_opens_again_what_is_taken_back_at_the_end() -> None:
    """The end of the connection is not put off: the peer has five seconds for what it has open then."""
    async with raw_client("rdma") as (end, server, region):
        (peer,) = server.peers
        await answer(end, head(Op.OPEN, 1) + region.descriptor())
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.aclose)
                await end.until(lambda: bool(end.messages))
                assert bytes(end.messages.pop()) == head(Op.RECALL, 1, Fault.REVOKED)
                await end.send(head(Op.OPEN, 2) + region.descriptor())
        assert HEADER.unpack(bytes(end.messages[0])[:8]) == (Op.REFUSED, Fault.LIMIT, 2)


@pytest.mark.parametrize("path", PATHS)
async def test_two_openings_of_one_number(path: str) -> None:
    async with raw_client(path) as (end, server, region):
        (peer,) = server.peers
        await answer(end, head(Op.OPEN, 1) + region.descriptor())
        await end.send(head(Op.OPEN, 1) + region.descriptor())
        await peer.wait_closed()


@pytest.mark.parametrize("path", PATHS)
async def test_a_peer_that_does_not_let_go_loses_its_access(path: str) -> None:
    async with raw_client(path) as (end, _, region):
        await answer(end, head(Op.OPEN, 1) + region.descriptor())
        with anyio.fail_after(30):
            await region.revoke(grace=0.01)
        await end.until(lambda: bool(end.messages))
        end.messages.clear()  # RECALL
        assert await refused(end, head(Op.READ, 2) + span(1, 0, 10)) == Fault.REVOKED


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "lie",
    [
        lambda meant: open_answer(1, 0, meant.length + 1, 0, meant.rights),
        lambda meant: open_answer(1, 0, meant.length, 0, Rights(7)),
        lambda meant: open_answer(1, (1 << 64) - 1, meant.length, 0, meant.rights),
        lambda meant: open_answer(2, 0, meant.length, 0, meant.rights),
        lambda meant: open_answer(1, 0, meant.length, 0, meant.rights)[:-1],
        lambda _: head(Op.REFUSED, 1, 200) + b"?",
    ],
)
async def test_an_owner_that_answers_something_else(path: str, lie: object) -> None:
    config = config_of(path)
    meant = Descriptor.new(Rights.READ, 100, 0)
    options = ListenOptions.of(config=config)
    async with await open_listener(_Listener, LOCAL, 0, options) as listener:
        client = await memory.connect(LOCAL, listener.port, config=config)
        async with client, await listener.accept() as accepted, anyio.create_task_group() as tasks:
            end = End(accepted.channel)

            async def ask() -> None:
                with pytest.raises(anyio.BrokenResourceError) as caught:
                    await client.open(meant.encode())
                assert isinstance(caught.value.__cause__, RemoteProtocolError)

            tasks.start_soon(ask)
            await end.until(lambda: bool(end.messages))
            assert callable(lie)
            await end.send(lie(meant))


async def test_descriptors_that_are_none_do_not_travel() -> None:
    config = config_of("tcp")
    async with (
        memory.serve(LOCAL, config=config) as server,
        await memory.connect(LOCAL, server.port, config=config) as client,
    ):
        for wrong in (b"", b"aRM", bytes(56)):
            with pytest.raises(memory.MemoryAccessError) as caught:
                await client.open(wrong)
            assert caught.value.fault == Fault.MALFORMED


@pytest.mark.parametrize("path", PATHS)
async def test_answers_that_wait_while_memory_is_taken_back(path: str) -> None:
    """A client that takes no answers does not get what is written there later."""
    config, size = config_of(path), 1 << 16
    async with (
        memory.serve(LOCAL, config=config) as server,
        await memory.alloc(size, config=config) as region,
        await channel.connect(LOCAL, server.port, kind=Kind.MEMORY, config=config) as connected,
    ):
        end = End(connected.channel)
        await answer(end, head(Op.OPEN, 1) + region.descriptor(Rights.READ))
        (owner,) = server.peers
        take, end.channel.on_message = end.channel.on_message, None
        asked = 0
        while not len(owner._outbox):
            await end.send(head(Op.READ, 2 + asked) + span(1, 0, size))
            asked += 1
            await settle()
        with anyio.fail_after(30):
            await region.revoke(grace=0)
        region[:].view[:] = b"x" * size
        end.channel.on_message = take
        got = [bytes(each) for each in await end.received(asked + 1)]
        assert not any(b"x" in each[HEADER.size :] for each in got if each[0] == Op.DONE)
        assert {each[1] for each in got if each[0] == Op.REFUSED} == {Fault.REVOKED}
        assert {HEADER.unpack(each[: HEADER.size])[2] for each in got} == set(range(1, 2 + asked))
