"""The transport of a stream on TCP alone, on a connection that delivers when the test wants it."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from aiordma import wake
from aiordma.errors import Code, FallbackReason
from aiordma.links.failover import ahead
from aiordma.links.failover.framed_pipe import FramedPipe
from aiordma.links.failover.tcp_carrier import TcpCarrier
from aiordma.proto import clc
from aiordma.proto.frames import MAX_BODY_BYTES, data_header, end_frame, negotiation_frame
from tests.health import until
from tests.proto.test_handshake import PROPOSAL

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

#: Of no attempt that this end knows.
CONFIRM = clc.Confirm(
    first_contact=True, gid=bytes(16), qpn=1, psn=1, mtu=3, rkey=1, rmb_addr=4096, ring_bytes=16384, token=7,
    engine_id=bytes(range(16)), host_id=bytes(16), window=64,
)  # fmt: skip


class Delivery:
    """A carrier (``tcp_carrier.py``) whose bytes come from the test."""

    def __init__(self) -> None:
        self.closed = False
        self.failure = None
        self.pending = 0
        self.watched = False
        self.on_input: Callable[[], None] | None = None
        self._arrived = bytearray()
        self.sent: list[bytes] = []

    def put(self, *parts: bytes | memoryview) -> None:
        self.sent.append(b"".join(parts))

    def say(self, frame: bytes, times: int) -> None:
        """Have these frames arrive, one at a time."""
        for _ in range(times):
            self._arrived += frame
            assert self.on_input is not None
            self.on_input()

    def read(self, size: int) -> bytes | None:
        data = bytes(self._arrived[:size])
        del self._arrived[:size]
        return data or None

    def reset(self) -> None:
        self.closed = True

    close = reset

    def watch(self, on: bool) -> None:
        self.watched = on

    def ask(self) -> None:
        """The peer wants to return to RDMA."""
        self._arrived += negotiation_frame(PROPOSAL.encode())

    def arrive(self, size: int) -> None:
        """Frames with ``size`` bytes of data."""
        while size:
            part = min(size, MAX_BODY_BYTES)
            self._arrived += data_header(part) + bytes(part)
            size -= part
        while self.watched and self._arrived and self.on_input is not None:
            self.on_input()


def framed_on(delivery: Delivery) -> FramedPipe:
    reason = FallbackReason(Code.SWITCHED, "a test", Code.SWITCHED, None)
    return FramedPipe(cast("Any", delivery), wake.current(), "the peer", b"", reason)


async def test_what_a_reader_has_taken_is_no_reason_not_to_read_on() -> None:
    """A message of the negotiation may be next, and a reader that has all it wanted asks for no more."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery.arrive(300_000)
    delivery.arrive(300_000)
    assert not delivery.watched, "it must not read without limit for a user that does not"
    left = 600_000
    while left:
        left -= len(framed.try_receive(min(left, 65536)) or b"")
    await until(lambda: delivery.watched)
    told: list[bool] = []
    framed.on_readable = lambda: told.append(True)
    delivery.arrive(1)
    assert told == [True]
    assert framed.readable == 1


async def test_a_callback_that_fails_keeps_no_sender_waiting() -> None:
    """Both are told of the end."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    told: list[str] = []

    def failing() -> None:
        told.append("readable")
        raise RuntimeError("of the program's")

    framed.on_readable, framed.on_writable = failing, lambda: told.append("writable")
    delivery.say(end_frame(closed=True), 1)
    assert told == ["readable", "writable"]


async def test_a_peer_that_asks_and_does_not_read_is_not_answered_without_end() -> None:
    """Each message of a negotiation would be answered; nothing is sent while the peer reads nothing."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery.say(negotiation_frame(CONFIRM.encode()), 3)
    assert len(delivery.sent) == 3
    delivery.pending = 1
    delivery.say(negotiation_frame(CONFIRM.encode()), 10_000)
    assert len(delivery.sent) < 100
    assert framed.error is None
    sent = len(delivery.sent)
    delivery.pending = 0  # it reads again
    delivery.say(negotiation_frame(CONFIRM.encode()), 2)
    assert len(delivery.sent) == sent + 2


class Endless:
    """An attempt to return to RDMA (``rejoin.py``) whose peer says nothing more."""

    error = None
    over = False
    may_be_revoked = False

    def answer(self, proposal: bytes) -> None:
        assert proposal == PROPOSAL.encode()

    def cancel(self) -> None:
        self.over = True


async def test_a_peer_that_asks_and_floods_is_held_back() -> None:
    """For an answer it is read beyond what the user takes, up to a limit, and once that is over as before."""
    delivery = Delivery()
    framed = framed_on(delivery)
    attempt = Endless()
    framed.new_rejoin = lambda: cast("Any", attempt)
    await until(lambda: delivery.watched)
    delivery.ask()
    for _ in range(70):
        delivery.arrive(1 << 20)
    assert not delivery.watched
    left = 70 << 20
    assert 64 << 20 <= framed.readable < 65 << 20
    attempt.cancel()
    assert framed.stay()
    most = 0
    while left:
        if left < 5 << 20:
            most = max(most, framed.readable)
        taken = len(framed.try_receive(1 << 20) or b"")
        left -= taken
        if not taken:
            await until(lambda: framed.readable > 0)
    assert 0 < most <= 512 * 1024
    await until(lambda: delivery.watched)


@pytest.mark.parametrize("how", ["read", "closed", "aborted"])
async def test_peers_that_flood_together_are_held_back(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """What is read ahead for all of them is bounded, and each reads on when there is room."""
    mib = 1 << 20
    monkeypatch.setattr(ahead, "_SUM_AHEAD_BYTES", 4 * mib)
    deliveries = [Delivery() for _ in range(5)]
    pipes = [framed_on(delivery) for delivery in deliveries]
    for pipe, delivery in zip(pipes, deliveries, strict=True):
        pipe.new_rejoin = lambda: cast("Any", Endless())
        await until(lambda: delivery.watched)  # noqa: B023
        delivery.ask()
        for _ in range(3):
            delivery.arrive(mib)
    assert [pipe.readable for pipe in pipes[:1]] == [3 * mib]
    assert 4 * mib <= sum(pipe.readable for pipe in pipes) < 6 * mib
    assert [delivery.watched for delivery in deliveries[2:]] == [False] * 3
    before = sum(pipe.readable for pipe in pipes[1:])
    if how == "read":
        got = 0
        while got < 3 * mib:
            got += len(pipes[0].try_receive(mib) or b"")
    elif how == "closed":
        pipes[0].close()
    else:
        pipes[0].abort()
    await until(lambda: sum(pipe.readable for pipe in pipes[1:]) > before + mib)
    for pipe in pipes[1:]:
        got = 0
        while got < 3 * mib:
            taken = pipe.try_receive(mib)
            got += len(taken or b"")
            if taken is None:
                await until(lambda: pipe.readable > 0)  # noqa: B023
    for pipe in pipes:
        pipe.abort()
    assert ahead._Sum.of(wake.current()).bytes == 0


async def test_both_ends_close_at_once() -> None:
    """The answer to the peer's close was a second, smaller end, which no peer takes: it reset the
    connection.
    """
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery.pending = 1  # so that the connection is not closed before the peer's end comes
    framed.close()
    delivery.say(end_frame(closed=True), 1)
    assert delivery.sent == [end_frame(closed=True)]
    framed.abort()


@pytest.mark.parametrize("how", ["send_eof", "close"])
async def test_an_end_is_the_answer_to_a_question_that_comes_late(how: str) -> None:
    """Nothing follows it: the peer may have closed when it comes, and would lose what it has not sent yet."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery.pending = 1
    getattr(framed, how)()
    delivery.say(negotiation_frame(PROPOSAL.encode()), 1)
    assert delivery.sent == [end_frame(closed=how == "close")]
    framed.abort()


#: Of no attempt that this end knows. It is dropped.
DECLINE = negotiation_frame(clc.Decline(diagnosis=Code.OUT_OF_SYNC).encode())
ONE_BYTE = data_header(1) + b"x"


class Flood(Delivery):
    """There is always more, up to a number of reads in one turn of the loop that no turn should come near."""

    TOO_MANY = 200

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame
        self._taken = 0
        self.turns = self.most = self._in_this_turn = 0
        self.over = False

    def read(self, size: int) -> bytes | None:
        if self.over:
            return None
        if not self._in_this_turn:
            wake.current().call_soon(self._next_turn)
        self._in_this_turn += 1
        self.most = max(self.most, self._in_this_turn)
        self.over = self.most == self.TOO_MANY
        # As the kernel does, it cuts frames anywhere.
        at = self._taken % len(self.frame)
        data = (self.frame * (size // len(self.frame) + 2))[at : at + size]
        self._taken += size
        return data

    def _next_turn(self) -> None:
        self.turns += 1
        self._in_this_turn = 0


class Drip(Flood):
    """The same, a frame at a time: of TLS, each is a record."""

    def read(self, size: int) -> bytes | None:
        return super().read(min(size, len(self.frame)))


@pytest.mark.parametrize("flood", [Flood, Drip])
async def test_others_have_their_turn_while_a_peer_floods(flood: type[Flood]) -> None:
    """Nothing of it is kept, so no limit of what is kept would end it."""
    delivery = flood(DECLINE)
    framed = framed_on(delivery)
    await until(lambda: delivery.turns >= 5 or delivery.over)
    assert not delivery.over
    assert framed.readable == 0
    framed.abort()


@pytest.mark.parametrize("flood", [Flood, Drip])
async def test_a_closed_end_waits_for_no_flood(monkeypatch: pytest.MonkeyPatch, flood: type[Flood]) -> None:
    """What the peer sends is dropped, and after a time the connection is closed."""
    monkeypatch.setattr("aiordma.proto.life.frames._LINGER_S", 0.02)
    delivery = flood(ONE_BYTE)
    framed = framed_on(delivery)
    framed.close()
    await until(lambda: delivery.closed)
    assert not delivery.over


@pytest.mark.parametrize("flood", [DECLINE, ONE_BYTE], ids=["declines", "data"])
async def test_what_was_dropped_does_not_keep_the_end_of_the_stream(flood: bytes) -> None:
    """It is behind more than one turn's share, and with TLS nothing tells that there is more."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery._arrived += flood * (300_000 // len(flood)) + end_frame(closed=True)
    framed.close()
    await until(lambda: delivery.closed)


@pytest.mark.parametrize(
    ("frames", "times"),
    [(ONE_BYTE * 2000, 5), (ONE_BYTE, 5000), (ONE_BYTE + DECLINE * 1000, 8)],
    ids=["read together", "read one by one", "between what is dropped"],
)
async def test_tiny_frames_take_no_more_memory_than_others(frames: bytes, times: int) -> None:
    """Each cost some 300 bytes, or all that was read with it, and one byte counted."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    expected = frames.count(ONE_BYTE) * times
    tracemalloc.start()
    try:
        delivery.say(frames, times)
        await until(lambda: framed.readable == expected)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 3 * expected + 100_000
    got = b""
    while len(got) < expected:
        got += framed.try_receive(1 << 20) or b""
    assert got == b"x" * expected
    framed.abort()


def test_the_loop_ends_with_much_unread(anyio_backend: Any) -> None:
    """A connection that is closed with something unread in it is reset, and the peer may lose what it has not
    read yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)  # of those that it accepts
        far = socket.create_connection(server.getsockname())
        near = server.accept()[0]
    with near, far:
        for one in (near, far):
            one.setblocking(False)

        async def main() -> None:
            reason = FallbackReason(Code.SWITCHED, "a test", Code.SWITCHED, None)
            waker = wake.current()
            framed = FramedPipe(TcpCarrier(near, waker), waker, "the peer", b"sent before", reason)
            with contextlib.suppress(BlockingIOError):
                while True:
                    far.send(data_header(4096) + bytes(4096))
            framed.close()

        anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
        assert far.recv(4096).endswith(b"sent before" + end_frame(closed=True))
        assert far.recv(4096) == b""
