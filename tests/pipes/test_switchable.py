"""The pipe that a user holds: what it keeps, and passes on, when its transports are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.errors import Code, FallbackReason, NegotiationError

from .link_pairs import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.pipes._switchable import SwitchablePipe

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

REASON = FallbackReason(Code.SWITCHED, "asked for by the test", Code.SWITCHED, None)


class Other:
    """A transport in memory, to switch to; it notes what it is told."""

    def __init__(self, *incoming: bytes) -> None:
        self.incoming = list(incoming)
        self.sent: list[bytes] = []
        self.ends: list[str] = []
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.reason = REASON
        self.moved = False  # the peer sends by another transport
        self.error: BaseException | None = None
        self.room = 1 << 20

    @property
    def drained(self) -> bool:
        return self.moved and not self.incoming

    @property
    def readable(self) -> int:
        return len(b"".join(self.incoming))

    @property
    def writable(self) -> int:
        return self.room

    @property
    def at_eof(self) -> bool:
        return self.incoming == [b""]

    @property
    def counters(self) -> tuple[int, int]:
        return len(b"".join(self.sent)), 0

    def try_send(self, data: Any, start: int = 0) -> int:
        part = bytes(memoryview(data)[start : start + self.room])
        self.sent.append(part)
        return len(part)

    def try_receive(self, max_bytes: int) -> bytes | None:
        return self.incoming.pop(0) if self.incoming else None

    def try_receive_into(self, buffer: bytearray) -> int:
        if not self.incoming:
            return -1
        data = self.incoming.pop(0)
        buffer[: len(data)] = data
        return len(data)

    def view(self) -> memoryview:
        return memoryview(self.incoming[0] if self.incoming else b"")

    def consume(self, n: int) -> None:
        self.incoming[:1] = [self.incoming[0][n:]] if n < len(self.incoming[0]) else []

    def send_eof(self) -> None:
        self.ends.append("eof")

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def rejoin(self) -> str:
        return "an attempt"


async def leave(pipe: SwitchablePipe, other: Other) -> None:
    """As ``links/failover`` does it, once both ends have agreed."""
    arrived = pipe.ring.ledger()[3]
    pipe.ring.leave(arrived)
    pipe.left_rdma(other)  # type: ignore[arg-type]


async def arrived(pipe: SwitchablePipe, size: int) -> None:
    with anyio.fail_after(5):
        while pipe.readable < size:
            await anyio.lowlevel.checkpoint()


async def test_the_rest_of_the_ring_comes_first(open_engine: Open) -> None:
    async with open_engine() as engine:
        for take in ("try_receive", "poll_receive"):
            pipe, peer = await connect(engine)
            peer.try_send(b"in the ring")
            await arrived(pipe, 11)
            other = Other(b"on TCP", b"")
            await leave(pipe, other)
            receive = getattr(pipe, take)
            assert pipe.readable == 11
            assert [receive(6), receive(100), receive(100), receive(100)] == [
                b"in the",
                b" ring",
                b"on TCP",
                b"",
            ]
            peer.abort()


async def test_borrowing_and_filling_go_on_behind_the_ring(open_engine: Open) -> None:
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        peer.try_send(b"in the ring")
        await arrived(pipe, 11)
        other = Other(b"on TCP", b"more")
        view = pipe.view()
        await leave(pipe, other)
        assert bytes(view) == b"in the ring"
        pipe.consume(11)
        assert bytes(pipe.view()) == b"on TCP"
        pipe.consume(6)
        buffer = bytearray(10)
        assert pipe.try_receive_into(buffer) == 4
        assert buffer[:4] == b"more"
        assert pipe.try_receive_into(buffer) == -1
        peer.abort()


async def test_several_transports_one_behind_the_other(open_engine: Open) -> None:
    """A stream that leaves, rejoins and leaves again before its user has read anything."""
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        again, peer_again = await connect(engine)
        peer.try_send(b"ring 1, ")
        peer_again.try_send(b"ring 2, ")
        await arrived(pipe, 8)
        await arrived(again, 8)
        first, second = Other(b"TCP 1, "), Other(b"TCP 2")
        await leave(pipe, first)
        pipe.adopt(again.ring)
        pipe.send_by(again.ring)
        pipe.receive_by(again.ring)
        first.moved = True
        pipe.rejoined_rdma()
        assert pipe.path == "rdma"
        assert pipe.try_send(b"by ring 2") == 9
        await leave(pipe, second)
        assert pipe.path == "tcp"
        assert b"".join(iter(lambda: pipe.try_receive(100), None)) == b"ring 1, TCP 1, ring 2, TCP 2"
        assert pipe.counters == (9, 16)
        assert pipe.statistics().bytes_received == 16
        peer.abort()
        peer_again.abort()


async def test_callbacks_follow_and_are_called(open_engine: Open) -> None:
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        called: list[str] = []
        pipe.on_readable = lambda: called.append("readable")
        pipe.on_writable = lambda: called.append("writable")
        other = Other()
        await leave(pipe, other)
        assert sorted(called) == ["readable", "writable"]
        assert other.on_readable is pipe.on_readable
        assert other.on_writable is pipe.on_writable
        pipe.on_readable = None
        assert other.on_readable is None
        peer.abort()


async def test_a_callback_that_fails_does_not_keep_the_stream(open_engine: Open) -> None:
    """Both directions leave the ring: it takes nothing any more."""

    def failing() -> None:
        raise RuntimeError("of the program's")

    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        called: list[str] = []
        pipe.on_readable, pipe.on_writable = failing, lambda: called.append("writable")
        other = Other()
        await leave(pipe, other)
        assert called == ["writable"]
        assert pipe.try_send(b"on TCP") == 6
        assert other.sent == [b"on TCP"]
        peer.abort()


async def test_the_end_follows(open_engine: Open) -> None:
    async with open_engine() as engine:
        for operation, noted in (("send_eof", "eof"), ("close", "close")):
            pipe, peer = await connect(engine)
            pipe.ring.owner.fail_over = lambda reason: True
            getattr(pipe, operation)()
            other = Other()
            await leave(pipe, other)
            assert set(other.ends) == {noted}
            peer.abort()


async def test_abort_ends_all_of_them(open_engine: Open) -> None:
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        peer.try_send(b"rest")
        await arrived(pipe, 4)
        other = Other()
        await leave(pipe, other)
        pipe.abort()
        assert other.ends == ["abort"]
        assert pipe.ring.is_finished
        with pytest.raises(anyio.ClosedResourceError):
            pipe.try_receive(1)
        peer.abort()


async def test_sending_goes_where_it_was_sent_to(open_engine: Open) -> None:
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        assert pipe.try_send(b"by the ring") == 11
        other = Other()
        other.room = 4
        await leave(pipe, other)
        assert pipe.try_send(b"on TCP", 2) == 4
        assert pipe.poll_send(b"on TCP") == 4
        assert other.sent == [b" TCP", b"on T"]
        assert pipe.writable == 4
        assert not pipe.spin_writable()
        assert pipe.counters == (19, 0)
        assert pipe.statistics().peer_ring_bytes == 0
        peer.abort()


async def test_a_switch_that_fails(open_engine: Open) -> None:
    """What went to the new rings is lost, and the old transport reports it."""
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        again, peer_again = await connect(engine)
        other = Other(b"read before")
        await leave(pipe, other)
        pipe.adopt(again.ring)
        pipe.send_by(again.ring)
        pipe.receive_by(again.ring)
        other.error = ConnectionResetError()
        pipe.stay_on(other, again.ring)
        again.abort()
        assert pipe.error is other.error
        assert pipe.try_receive(100) == b"read before"
        assert pipe.try_send(b"x") == 1
        assert other.sent == [b"x"]
        peer.abort()
        peer_again.abort()


async def test_rejoining_is_for_streams_off_rdma(open_engine: Open) -> None:
    async with open_engine() as engine:
        pipe, peer = await connect(engine)
        with pytest.raises(NegotiationError, match="on RDMA"):
            pipe.rejoin()
        other = Other()
        await leave(pipe, other)
        assert pipe.fallback_reason == REASON
        attempt: Any = pipe.rejoin()
        assert attempt == "an attempt"
        peer.abort()
