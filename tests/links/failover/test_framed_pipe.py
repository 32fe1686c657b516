"""The transport of a stream on TCP alone, on a connection that delivers when the test wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aiordma import wake
from aiordma.errors import Code, FallbackReason
from aiordma.links.failover import framed_pipe
from aiordma.links.failover.framed_pipe import FramedPipe
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
        if self.watched and self.on_input is not None:
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
    monkeypatch.setattr(framed_pipe, "_SUM_AHEAD_BYTES", 4 * mib)
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
    assert framed_pipe._Sum.of(wake.current()).bytes == 0


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
